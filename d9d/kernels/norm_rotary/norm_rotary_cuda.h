// norm_rotary by its kernels, for tensors that fits_norm_rotary_kernel() takes, without autograd.
#pragma once

#include <array>

#include "d9d/kernels/norm_rotary/norm_rotary.h"

namespace d9d::kernels::detail {

// Queries, then keys. An undefined tensor is left out; results are undefined for it.
using QueriesAndKeys = std::array<at::Tensor, 2>;

struct NormRotaryTensors {
  QueriesAndKeys x;        // [B, S, heads, D]
  QueriesAndKeys weights;  // [D]
  at::Tensor cos;          // [B or 1, S, Dr]
  at::Tensor sin;
};

// Whether there is a GPU with kernels, for the dtype and the sizes of these heads. Strides and addresses that the
// kernels do not take cost a copy.
[[nodiscard]] bool fits_norm_rotary_kernel(const NormRotaryTensors& tensors);

[[nodiscard]] QueriesAndKeys norm_rotary_forward_cuda(const NormRotaryTensors& tensors,
                                                      const NormRotaryOptions& options);

struct NormRotaryWanted {
  std::array<bool, 2> x = {};
  std::array<bool, 2> weights = {};
};
struct NormRotaryBackward {
  QueriesAndKeys x;        // adjacent columns of one buffer where both are wanted and tensors.x are, or go beside
  QueriesAndKeys weights;  // in the weights' dtypes
};
// Those of an undefined grad_out are left out like those that are not wanted. `beside`: undefined, or the gradient of
// something else that nobody can see but through its own columns. Where both of x are wanted and its rows have room for
// them before these columns, they go there.
[[nodiscard]] NormRotaryBackward norm_rotary_backward_cuda(const QueriesAndKeys& grad_out,
                                                           const NormRotaryTensors& tensors,
                                                           const NormRotaryOptions& options,
                                                           const NormRotaryWanted& wanted, const at::Tensor& beside);

}  // namespace d9d::kernels::detail
