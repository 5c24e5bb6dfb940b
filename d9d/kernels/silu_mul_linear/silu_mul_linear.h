// The second half of SwiGLU (Shazeer, arXiv:2002.05202): (silu(gate) * up) W^T, which is linear() of silu_mul().
//
// Example
//   const std::vector<at::Tensor> columns = kernels::linears(x, {gate_weight, up_weight});
//   const at::Tensor y = kernels::silu_mul_linear(columns[0], columns[1], down_weight);
//   ... of a linear with an adapter: silu_mul_linear(columns[0], columns[1], down_weight, {{.a = a, .b = b}})
//
// On a GPU with kernels, for bf16 with gradients of both gate and up and sizes for which it pays, one kernel computes
// these gradients. The gradient of silu(gate) * up then stays in registers: it is neither written to memory nor
// rounded. silu(gate) * up, of which a decoder's layer would keep a sixth of its activations, is made again.
#pragma once

#include <vector>

#include "d9d/kernels/linear/linear.h"

namespace d9d::kernels {

// gate, up  [..., in], one shape; any strides (for example the halves of a fused projection), may be empty
// weight    [out, in]; all three of one floating dtype and device
// terms     of the linear (../linear/linear.h)
// Returns   [..., out]. Differentiable once in all; saves gate, up and, where the kernel does not make it again for the
// gradients of the weight or of an A, silu(gate) * up.
// The gradients are those of silu_mul and linear (../silu_mul/silu_mul.h, ../linear/linear.h), in their layouts; the
// weight's gradient is written or added to its place if it has one (make_gradient). The kernel takes one term, whose
// rank is a multiple of 8. Local, unless the sum of the output over ranks is exchanged (RowEdges). Throws ConfigError
// for arguments that silu_mul or linear refuse.
[[nodiscard]] at::Tensor silu_mul_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                                         const std::vector<LowRankTerm>& terms = {}, const RowExchangePtr& output = {});

}  // namespace d9d::kernels
