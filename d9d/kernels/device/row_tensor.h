// A tensor whose rows a kernel can find.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/device/strided_rows.h"

namespace d9d::kernels::detail {

struct RowTensor {
  at::Tensor tensor;
  StridedRows rows;
};

// The tensor itself, of one dim or more, or a contiguous copy where strided_rows has no answer.
[[nodiscard]] RowTensor row_tensor(const at::Tensor& tensor);

}  // namespace d9d::kernels::detail
