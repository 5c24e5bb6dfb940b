#include "d9d/kernels/device/row_tensor.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {

RowTensor row_tensor(const at::Tensor& tensor) {
  if (const auto rows = strided_rows(tensor)) return {tensor, *rows};
  const at::Tensor copy = tensor.contiguous();
  return {copy, *strided_rows(copy)};
}

}  // namespace d9d::kernels::detail
