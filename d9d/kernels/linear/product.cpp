#include "d9d/kernels/linear/product.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {

at::Tensor rows_product(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  write_rows_product(out, x, weight);
  return out;
}

void write_rows_product(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight) {
  if (write_rows_product_by_cublas(out, x, weight)) return;
  at::Tensor result = out;
  if (out.scalar_type() == x.scalar_type()) {
    at::mm_out(result, x, weight.t());
  } else {
    at::mm_out(result, x, weight.t(), out.scalar_type());
  }
}

}  // namespace d9d::kernels::detail
