// The gated activation of SwiGLU (Shazeer, arXiv:2002.05202): out = silu(gate) * up with silu(x) = x * sigmoid(x).
//
// Example
//   const at::Tensor hidden = kernels::silu_mul(gate_proj->forward(x), up_proj->forward(x));
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

}  // namespace d9d::kernels
