// The gated activation of an expert whose output is weighted: out = weight * silu(gate) * up. A linear map follows, so
// weighting its input equals weighting its output, but on a narrower tensor.
//
// Example
//   const at::Tensor activated = kernels::weighted_silu_mul(gate_proj(rows), up_proj(rows), probs);    // [N, I]
//   return down_proj(activated);                                                                       // probs * ...
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// gate, up   [N, I], one floating dtype and device; any strides, may be empty.
// weights    [N], any floating dtype, on the same device.
// Returns    [N, I] in the dtype of gate, contiguous. On a GPU with kernels it is computed in at least fp32 with one
//            rounding at the end; elsewhere by silu_mul and a product in the dtype of gate.
// Differentiable once in all three; saves them, recomputes the rest. Each weight's gradient is summed in a fixed order.
// If gate and up are adjacent columns of one buffer, so are their gradients, as with silu_mul.
// Local. Throws ConfigError for other shapes or dtypes.
[[nodiscard]] at::Tensor weighted_silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weights);

}  // namespace d9d::kernels
