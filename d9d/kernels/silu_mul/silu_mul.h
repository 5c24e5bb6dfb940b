// The gated activation of SwiGLU (Shazeer, arXiv:2002.05202): out = silu(gate) * up with silu(x) = x * sigmoid(x).
//
// Example
//   const at::Tensor hidden = kernels::silu_mul(gate_proj->forward(x), up_proj->forward(x));
//
//   const at::Tensor activated = kernels::weighted_silu_mul(gate_proj(rows), up_proj(rows), probs);    // [N, I]
//   return down_proj(activated);                                                                       // probs * ...
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// gate, up  one shape, floating dtype and device; any strides (for example the halves of a fused projection), may be
//           empty.
// Returns   that shape and dtype, contiguous. Computed in at least fp32 with one rounding at the end.
// Differentiable once in both; saves gate and up, recomputes the sigmoid. On a GPU, if gate and up are adjacent columns
// of one buffer, their gradients are adjacent columns of one buffer too. Local. Throws ConfigError if gate and up
// differ in shape, dtype or device.
[[nodiscard]] at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

// The activation of an expert whose output is weighted: out = weight * silu(gate) * up. A linear map follows, so
// weighting its input equals weighting its output, but on a narrower tensor.
//
// gate, up   [N, I], one floating dtype and device; any strides, may be empty.
// weights    [N], any floating dtype, on the same device.
// Returns    [N, I] in the dtype of gate, contiguous. On a GPU with kernels it is computed in at least fp32 with one
//            rounding at the end; elsewhere by silu_mul and a product in the dtype of gate.
// Differentiable once in all three; saves them, recomputes the rest. Each weight's gradient is summed in a fixed order.
// If gate and up are adjacent columns of one buffer, so are their gradients, as with silu_mul.
// Local. Throws ConfigError for other shapes or dtypes.
[[nodiscard]] at::Tensor weighted_silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weights);

}  // namespace d9d::kernels
