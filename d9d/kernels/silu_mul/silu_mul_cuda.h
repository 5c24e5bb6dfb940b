// silu_mul_aten.h for tensors that has_cuda_kernels() takes, in one pass over their memory. Inputs may be strided: the
// halves of a fused projection are read without a copy, and their gradients, if both are wanted, are the halves of one
// buffer.
#pragma once

#include "d9d/kernels/silu_mul/silu_mul_aten.h"

namespace d9d::kernels::detail {

[[nodiscard]] at::Tensor silu_mul_forward_cuda(const at::Tensor& gate, const at::Tensor& up);
[[nodiscard]] SiluMulBackward silu_mul_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate,
                                                     const at::Tensor& up, SiluMulWanted wanted);

}  // namespace d9d::kernels::detail
