// silu_mul_aten.h as one loop over contiguous float, double or bfloat16 on the CPU.
#pragma once

#include "d9d/kernels/silu_mul/silu_mul_aten.h"

namespace d9d::kernels::detail {

[[nodiscard]] at::Tensor silu_mul_forward_cpu(const at::Tensor& gate, const at::Tensor& up);
[[nodiscard]] SiluMulBackward silu_mul_backward_cpu(const at::Tensor& grad_out, const at::Tensor& gate,
                                                    const at::Tensor& up, SiluMulWanted wanted);

}  // namespace d9d::kernels::detail
