// norm_rotary by its CUDA kernels, without autograd, for tensors that fits_norm_rotary_kernel() takes.
#pragma once

#include <array>

#include "d9d/kernels/norm_rotary/norm_rotary.h"

namespace d9d::kernels::detail {

// Queries, then keys. An undefined tensor is skipped, and its result is undefined.
using QueriesAndKeys = std::array<at::Tensor, 2>;

struct NormRotaryTensors {
  QueriesAndKeys x;        // [B, S, heads, D]
  QueriesAndKeys weights;  // [D]
  at::Tensor cos;          // [B or 1, S, Dr]
  at::Tensor sin;
};

// Whether the heads are on a GPU with kernels for their dtype and sizes. Tensors with strides or addresses that the
// kernels do not take are copied.
[[nodiscard]] bool fits_norm_rotary_kernel(const NormRotaryTensors& tensors);

[[nodiscard]] QueriesAndKeys norm_rotary_forward_cuda(const NormRotaryTensors& tensors,
                                                      const NormRotaryOptions& options);

struct NormRotaryWanted {
  std::array<bool, 2> x = {};
  std::array<bool, 2> weights = {};
};
struct NormRotaryBackward {
  QueriesAndKeys x;        // if both are wanted: adjacent columns if tensors.x are, or written in front of `beside`
  QueriesAndKeys weights;  // in the weights' dtypes
};
// Gradients for an undefined grad_out are not computed, like those that are not wanted. `beside` is undefined, or the
// gradient of another tensor whose storage no other code can access outside its own columns. If both gradients of x are
// wanted and the rows of `beside` have room for them in front of its columns, they are written there.
[[nodiscard]] NormRotaryBackward norm_rotary_backward_cuda(const QueriesAndKeys& grad_out,
                                                           const NormRotaryTensors& tensors,
                                                           const NormRotaryOptions& options,
                                                           const NormRotaryWanted& wanted, const at::Tensor& beside);

}  // namespace d9d::kernels::detail
