#include "d9d/kernels/common/strided_rows.h"

#include <ATen/core/TensorBase.h>

namespace d9d::kernels::detail {

std::optional<StridedRows> strided_rows(const at::TensorBase& tensor) {
  const at::IntArrayRef sizes = tensor.sizes();
  const at::IntArrayRef strides = tensor.strides();
  const std::int64_t num_columns = sizes.back();
  if (tensor.is_contiguous())
    return StridedRows::contiguous(num_columns > 0 ? tensor.numel() / num_columns : 0, num_columns);
  if (num_columns > 1 && strides.back() != 1) return std::nullopt;
  StridedRows rows;
  std::int64_t outer_rows = 1;
  for (std::int64_t dim = tensor.dim() - 2; dim >= 0; --dim) {
    const std::int64_t size = sizes[dim];
    const std::int64_t stride = strides[dim];
    if (size == 1) continue;
    if (rows.inner_rows == 1) {
      rows.inner_rows = size;
      rows.inner_stride = stride;
    } else if (outer_rows == 1 && stride == rows.inner_rows * rows.inner_stride) {
      rows.inner_rows *= size;
    } else if (outer_rows == 1) {
      outer_rows = size;
      rows.outer_stride = stride;
    } else if (stride == outer_rows * rows.outer_stride) {
      outer_rows *= size;
    } else {
      return std::nullopt;
    }
  }
  return rows;
}

}  // namespace d9d::kernels::detail
