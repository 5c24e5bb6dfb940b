// The mathematics of silu_mul on plain tensors of any device, without autograd. Other implementations are measured
// against it.
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

}  // namespace d9d::kernels::detail
