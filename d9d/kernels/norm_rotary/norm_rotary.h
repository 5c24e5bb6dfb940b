// RMSNorm of each head (../rms_norm/rms_norm.h) followed by rotary position embedding (../rotary/rotary.h), as
// attention applies them to queries and keys. On a GPU with kernels this is one pass over memory instead of three.
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
  bool zero_centered = false;  // the factor is 1 + weight
};

// Legend              B = batch, S = sequence, D = head channels (> 0), Dr = rotated channels (even, <= D).
// q, k                [B, S, heads, D] of one floating dtype and device; their numbers of heads may differ; any
//                     strides, may be empty.
// q_weight, k_weight  [D], floating, any dtype.
// cos, sin            [B, S, Dr] or [1, S, Dr], floating, any dtype; constants that must not require a gradient.
// Returns             {q, k}: apply_rotary of rms_norm of each, contiguous. On a GPU with kernels it is computed in
//                     fp32 with one rounding at the end, elsewhere with one after each of the two ops.
// Differentiable once in q, k and both weights; saves its inputs, recomputes the rest. On a GPU, if q and k are
// adjacent columns of one buffer, as parts of a fused projection are, so are their gradients. The gradients of the
// weights are summed over heads in an order that only sizes and strides decide. Local. Throws ConfigError on shapes,
// dtypes or devices that do not fit and on tables that require a gradient.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> norm_rotary(const at::Tensor& q, const at::Tensor& k,
                                                            const at::Tensor& q_weight, const at::Tensor& k_weight,
                                                            const at::Tensor& cos, const at::Tensor& sin,
                                                            const NormRotaryOptions& options);

// The same for the queries and keys of a fused projection whose values `v` pass through unchanged. Returns {q, k, v},
// with v itself or an alias of it that autograd does not track as a view; use it in place of v. If q, k and v are
// adjacent columns in this order, backward then gets the gradient of v together with those of q and k, and returns it
// unchanged. If the rows of this gradient are preceded by room for those of q and k (fused_attention returns such
// gradients), and no other code holds this tensor or its storage, the gradients of q and k are written there. So all
// three gradients are adjacent columns of one buffer, without a copy.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_rotary(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& q_weight,
    const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin, const NormRotaryOptions& options);

}  // namespace d9d::kernels
