// The gated activation of an expert whose output counts with a weight: out = weight * silu(gate) * up. Weighting here
// what a linear map follows is weighting its output, in a narrower tensor.
//
// Example
//   const at::Tensor activated = kernels::weighted_silu_mul(gate_proj(rows), up_proj(rows), probs);    // [N, I]
//   return down_proj(activated);                                                                       // probs * ...
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// gate, up   [N, I], one floating dtype and device; any strides, may be empty.
// weights    [N], any floating dtype, on their device.
// Returns    [N, I], their dtype, contiguous. On a GPU with kernels computed in at least fp32 with one rounding at the
//            end; elsewhere silu_mul, then a product in the dtype of gate.
// Differentiable once in all three; keeps them, recomputes the rest; each weight's gradient is a sum of fixed order.
// Gradients of halves of one buffer are halves of one again, as of silu_mul.
// Local. Throws ConfigError for other shapes or dtypes.
[[nodiscard]] at::Tensor weighted_silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weights);

}  // namespace d9d::kernels
