#include "d9d/kernels/linear/gemm.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {

void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (out.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, out.scalar_type());
  }
}

void accumulate(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (out.scalar_type() == a.scalar_type()) {
    out.addmm_(a, b);
  } else {
    at::addmm_out(out, out, a, b, out.scalar_type());
  }
}

at::Tensor rows_product(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  write_rows_product(out, x, weight);
  return out;
}

void write_rows_product(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight) {
  if (!write_rows_product_by_cublas(out, x, weight)) multiply(out, x, weight.t());
}

}  // namespace d9d::kernels::detail
