// The gradients of gate and up of silu_mul_linear by the kernel of silu_mul_linear_kernel.h.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// Whether the kernel takes gate, up [..., F] and weight [H, F]: bf16 on Hopper, rows of gate and of up at one distance
// each, 16 bytes of alignment, nothing empty.
[[nodiscard]] bool fits_silu_mul_linear_kernel(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight);

// Whether the kernel is faster than a product and silu_mul_backward: T and F fill the rounds of tiles that the
// multiprocessors of an H100 or H200 take.
[[nodiscard]] bool pays_silu_mul_linear_kernel(std::int64_t num_rows, std::int64_t num_features);

// grad_out [T, H] contiguous, T the rows of gate -> the gradients of gate and up, in their shape: halves of one buffer
// where gate and up are so.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> silu_mul_linear_backward_cuda(const at::Tensor& grad_out,
                                                                              const at::Tensor& gate,
                                                                              const at::Tensor& up,
                                                                              const at::Tensor& weight);

}  // namespace d9d::kernels::detail
