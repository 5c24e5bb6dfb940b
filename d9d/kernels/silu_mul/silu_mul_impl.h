// Implementations of silu_mul without autograd. `aten` is the mathematics on tensors of any device, against which the
// others are measured; `cpu` is one loop over contiguous float, double or bfloat16; `cuda` takes what
// has_cuda_kernels() takes, in one pass over memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

struct SiluMulBackward {
  at::Tensor gate;  // undefined unless wanted
  at::Tensor up;    // undefined unless wanted
};
struct SiluMulWanted {
  bool gate = false;
  bool up = false;
};

// All tensors of one shape and dtype.
[[nodiscard]] at::Tensor silu_mul_forward_aten(const at::Tensor& gate, const at::Tensor& up);
[[nodiscard]] SiluMulBackward silu_mul_backward_aten(const at::Tensor& grad_out, const at::Tensor& gate,
                                                     const at::Tensor& up, SiluMulWanted wanted);

[[nodiscard]] at::Tensor silu_mul_forward_cpu(const at::Tensor& gate, const at::Tensor& up);
[[nodiscard]] SiluMulBackward silu_mul_backward_cpu(const at::Tensor& grad_out, const at::Tensor& gate,
                                                    const at::Tensor& up, SiluMulWanted wanted);

[[nodiscard]] at::Tensor silu_mul_forward_cuda(const at::Tensor& gate, const at::Tensor& up);
[[nodiscard]] SiluMulBackward silu_mul_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate,
                                                     const at::Tensor& up, SiluMulWanted wanted);

}  // namespace d9d::kernels::detail
