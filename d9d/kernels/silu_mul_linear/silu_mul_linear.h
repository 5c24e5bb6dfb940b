// The second half of SwiGLU (Shazeer, arXiv:2002.05202): (silu(gate) * up) W^T, that is linear() of silu_mul().
//
// Example
//   const std::vector<at::Tensor> columns = kernels::linears(x, {gate_weight, up_weight});
//   const at::Tensor y = kernels::silu_mul_linear(columns[0], columns[1], down_weight);
//
// On a GPU with kernels, where all of it is trained in bf16, the gradients of gate and up are made where the gradient
// of what lies between them and the weight is: it never goes to memory, and is not rounded.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// gate, up  [..., in], one shape; any strides (the halves of one fused projection, say), may be empty
// weight    [out, in]; all of one floating dtype and device
// Returns   [..., out]. Differentiable once in all three; keeps gate, up and their product.
// Gradients are those of silu_mul and linear (../silu_mul/silu_mul.h, ../linear/linear.h), in their layouts; that of
// the weight is added to what is there already where something keeps it. Local. Throws ConfigError for what these
// refuse.
[[nodiscard]] at::Tensor silu_mul_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight);

}  // namespace d9d::kernels
