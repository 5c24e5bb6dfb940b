// The gradients of gate and up of silu_mul_linear by the kernel of silu_mul_linear_kernel.h.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// Whether the kernel takes gate, up [..., F] and weight [H, F]: bf16 on Hopper, rows of gate and of up at one distance
// each, 16 bytes of alignment, nothing empty.
[[nodiscard]] bool fits_silu_mul_linear_kernel(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight);

// grad_out [T, H] contiguous, T the rows of gate -> the gradients of gate and up, in their shape: halves of one buffer
// where gate and up are so.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> silu_mul_linear_backward_cuda(const at::Tensor& grad_out,
                                                                              const at::Tensor& gate,
                                                                              const at::Tensor& up,
                                                                              const at::Tensor& weight);

}  // namespace d9d::kernels::detail
