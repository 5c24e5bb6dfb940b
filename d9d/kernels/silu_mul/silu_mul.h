// The gated activation of SwiGLU (Shazeer, arXiv:2002.05202): out = silu(gate) * up with silu(x) = x * sigmoid(x).
//
// Example
//   const at::Tensor hidden = kernels::silu_mul(gate_proj->forward(x), up_proj->forward(x));
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// gate, up  one shape, floating dtype and device; any strides (the halves of one fused projection, say), may be empty.
// Returns   that shape and dtype, contiguous. Computed in at least fp32 with one rounding at the end.
// Differentiable once in both; keeps gate and up, recomputes the sigmoid. Where up's columns follow those of gate in
// the rows of one buffer, the gradients do so too in a buffer of theirs (GPU). Local. Throws ConfigError when gate and
// up differ.
[[nodiscard]] at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

}  // namespace d9d::kernels
