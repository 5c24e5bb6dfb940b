// Tensors of queries and keys as HeadsView.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/rotary/heads_view.h"

namespace d9d::kernels::detail {

// Whether kernels on HeadsView take heads of this dtype and these sizes.
[[nodiscard]] bool has_heads_kernel(at::ScalarType dtype, std::int64_t head_dim, std::int64_t rotary_dim);

// Whether a HeadsView has the strides and the address of [B, S, heads, D], not empty.
[[nodiscard]] bool fits_heads_kernel(const at::Tensor& heads);
// Itself if it fits, or a contiguous copy.
[[nodiscard]] at::Tensor fitting_heads(const at::Tensor& heads);
[[nodiscard]] HeadsView view_of(const at::Tensor& fitting);

// Itself or a copy, contiguous, aligned and of that dtype.
[[nodiscard]] at::Tensor fitting_numbers(const at::Tensor& numbers, at::ScalarType dtype);

// Makes one batch of several, where all views have one stride from token to token and tables a row for each: it spares
// kernels a division. Views without data do not count.
void join_batches(HeadsShape& shape, std::initializer_list<const HeadsView*> views);

}  // namespace d9d::kernels::detail
