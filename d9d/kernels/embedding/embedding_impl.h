// What embedding.cpp needs of CUDA.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// Whether add_rows_cuda() adds rows of one dtype to sums of another.
[[nodiscard]] bool can_add_rows_cuda(const at::Tensor& sums, const at::Tensor& rows);
// sums [V, H] contiguous, ids [...] int64, rows [..., H] -> adds each row to that of its id, without synchronising.
void add_rows_cuda(const at::Tensor& sums, const at::Tensor& ids, const at::Tensor& rows);

}  // namespace d9d::kernels::detail
