// A tensor whose rows a kernel can find, or whose address it takes.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/common/strided_rows.h"

namespace d9d::kernels::detail {

struct RowTensor {
  at::Tensor tensor;
  StridedRows rows;
};

// The tensor itself, of one dim or more, or a contiguous copy where strided_rows has no answer.
[[nodiscard]] RowTensor row_tensor(const at::Tensor& tensor);

// Whether it begins at a multiple of 16 bytes, as tensor maps and vectors want it.
[[nodiscard]] bool is_aligned(const at::Tensor& tensor);
// The tensor itself if it does, or a copy.
[[nodiscard]] at::Tensor aligned(const at::Tensor& tensor);

}  // namespace d9d::kernels::detail
