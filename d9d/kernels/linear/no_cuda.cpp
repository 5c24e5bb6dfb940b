#include "d9d/kernels/linear/gemm.h"

namespace d9d::kernels::detail {

bool write_rows_product_by_cublas(const at::Tensor& /*out*/, const at::Tensor& /*x*/, const at::Tensor& /*weight*/) {
  return false;
}

}  // namespace d9d::kernels::detail
