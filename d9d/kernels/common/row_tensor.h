// Brings a tensor into a form that kernels take: rows with at most two strides, or an address aligned to 16 bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/common/strided_rows.h"

namespace d9d::kernels::detail {

struct RowTensor {
  at::Tensor tensor;
  StridedRows rows;
};

// The tensor itself, of one dim or more, or a contiguous copy where strided_rows() returns nullopt.
[[nodiscard]] RowTensor row_tensor(const at::Tensor& tensor);

// Whether the data begin at a multiple of 16 bytes, as tensor maps and vectorised accesses require.
[[nodiscard]] bool is_aligned(const at::Tensor& tensor);
// The tensor itself if it is aligned, otherwise a copy.
[[nodiscard]] at::Tensor aligned(const at::Tensor& tensor);

}  // namespace d9d::kernels::detail
