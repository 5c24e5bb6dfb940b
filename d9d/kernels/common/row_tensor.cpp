#include "d9d/kernels/common/row_tensor.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {

RowTensor row_tensor(const at::Tensor& tensor) {
  if (const auto rows = strided_rows(tensor)) return {tensor, *rows};
  const at::Tensor copy = tensor.contiguous();
  return {copy, *strided_rows(copy)};
}

bool is_aligned(const at::Tensor& tensor) { return is_aligned(tensor.const_data_ptr()); }

at::Tensor aligned(const at::Tensor& tensor) { return is_aligned(tensor) ? tensor : tensor.clone(); }

}  // namespace d9d::kernels::detail
