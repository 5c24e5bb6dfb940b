// The gradients of gate and up of silu_mul_linear by the kernel of silu_mul_linear_kernel.h.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// Whether the kernel takes gate, up [..., F] and weight [H, F]: bf16 on Hopper, or without values (meta), not empty,
// aligned to 16 bytes, with a constant stride between the rows of gate and between those of up. a: of a term of low
// rank [R, F], with R a multiple of 8; undefined if there is none.
[[nodiscard]] bool fits_silu_mul_linear_kernel(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                                               const at::Tensor& a = {});

// Whether the kernel is faster than a matrix product and silu_mul_backward. It is if num_rows and num_features fill the
// waves of tiles on the multiprocessors of an H100 or H200 well enough.
[[nodiscard]] bool pays_silu_mul_linear_kernel(std::int64_t num_rows, std::int64_t num_features);

struct SiluMulLinearBackward {
  at::Tensor gate, up;  // their gradients, in their shape: adjacent columns of one buffer if gate and up are
  at::Tensor product;   // silu(gate) * up [T, F], bit for bit that of silu_mul(); undefined unless it was asked for
};

// grad_out [T, H] contiguous, with T the number of rows of gate. Of a term of low rank: the gradient of
// (silu(gate) * up) A^T [T, R], contiguous, and A [R, F]; both undefined if there is none.
[[nodiscard]] SiluMulLinearBackward silu_mul_linear_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate,
                                                                  const at::Tensor& up, const at::Tensor& weight,
                                                                  bool wants_product,
                                                                  const at::Tensor& grad_hidden = {},
                                                                  const at::Tensor& a = {});
// The same for some of the rows, into tensors for them: gate and up [T, F].
void write_silu_mul_linear_backward_cuda(const SiluMulLinearBackward& out, const at::Tensor& grad_out,
                                         const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                                         const at::Tensor& grad_hidden = {}, const at::Tensor& a = {});
// Gradients without values for all rows.
[[nodiscard]] SiluMulLinearBackward empty_silu_mul_linear_backward(const at::Tensor& gate, const at::Tensor& up,
                                                                   bool wants_product);

}  // namespace d9d::kernels::detail
