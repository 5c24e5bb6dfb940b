// What attention does to queries and keys before it compares them: RMSNorm of each head (../rms_norm/rms_norm.h), then
// rotary position embedding (../rotary/rotary.h). On a GPU with kernels one pass over memory instead of three.
//
// Example
//   const auto [q_rotated, k_rotated] =
//       kernels::norm_rotary(q, k, q_weight, k_weight, cos, sin, {.style = kernels::RotaryStyle::kHalf, .eps = 1e-6});
#pragma once

#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/rotary/rotary.h"

namespace d9d::kernels {

struct NormRotaryOptions {
  RotaryStyle style = RotaryStyle::kHalf;
  double eps = 1e-6;
  bool zero_centered = false;  // the factors are 1 + weight
};

// Legend              B = batch, S = sequence, D = head channels (> 0), Dr = rotated channels (even, <= D).
// q, k                [B, S, heads, D], heads of their own number, one floating dtype and device; any strides, may be
//                     empty.
// q_weight, k_weight  [D], floating, any dtype.
// cos, sin            [B, S, Dr] or [1, S, Dr], floating, any dtype; constants: no gradient.
// Returns             {q, k} normalised and rotated, contiguous: apply_rotary of both rms_norm. On a GPU with kernels
//                     computed in fp32 with one rounding at the end, elsewhere with one after each of the two.
// Differentiable once in q, k and both weights; keeps its inputs, recomputes the rest. Where k's columns follow those
// of q in the rows of one buffer, as parts of a fused projection do, the gradients do so too in a buffer of theirs
// (GPU). The gradients of the weights add heads in an order that only sizes and strides decide. Local. Throws
// ConfigError on shapes, dtypes or devices that do not fit and on tables that require a gradient.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> norm_rotary(const at::Tensor& q, const at::Tensor& k,
                                                            const at::Tensor& q_weight, const at::Tensor& k_weight,
                                                            const at::Tensor& cos, const at::Tensor& sin,
                                                            const NormRotaryOptions& options);

// The same of the queries and keys of a fused projection whose values `v` pass through: {q, k, v}, v an alias that
// autograd does not know as a view, or itself. Use it in v's place: where k's columns follow those of q, and v's those
// of k, backward sees the gradient of v beside those of q and k, and returns it as it is. If its rows have room for
// theirs before its own columns (fused_attention gives such gradients), and nobody but this function has that tensor or
// its storage, all three are adjacent columns of one buffer, without a copy.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_rotary(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& q_weight,
    const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin, const NormRotaryOptions& options);

}  // namespace d9d::kernels
