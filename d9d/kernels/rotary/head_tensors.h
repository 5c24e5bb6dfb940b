// Conversion of tensors of queries and keys to HeadsView.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/rotary/heads_view.h"

namespace d9d::kernels::detail {

// Whether kernels on HeadsView take heads of this dtype and these sizes.
[[nodiscard]] bool has_heads_kernel(at::ScalarType dtype, std::int64_t head_dim, std::int64_t rotary_dim);

// Whether a HeadsView can describe the strides and the address of `heads`, [B, S, heads, D] and not empty.
[[nodiscard]] bool fits_heads_kernel(const at::Tensor& heads);
// The tensor itself if it fits, otherwise a contiguous copy.
[[nodiscard]] at::Tensor fitting_heads(const at::Tensor& heads);
[[nodiscard]] HeadsView view_of(const at::Tensor& fitting);

// `numbers` in `dtype`, contiguous and aligned to 16 bytes; copied only if needed.
[[nodiscard]] at::Tensor fitting_numbers(const at::Tensor& numbers, at::ScalarType dtype);

// Treats all tokens as one batch (num_positions = num_tokens) if in all views the stride between tokens is constant
// across batches and the tables have a row per token. This spares kernels a division. Views without data are ignored.
void join_batches(HeadsShape& shape, std::initializer_list<const HeadsView*> views);

}  // namespace d9d::kernels::detail
