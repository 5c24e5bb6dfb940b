// Looks up rows of a table by index, with a gradient that is summed in at least float32.
//
// Example
//   const at::Tensor x = d9d::kernels::embedding_rows(table, ids);     // [V, H], [B, S] -> [B, S, H]
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// table [V, H] floating, ids [...] int64 in [0, V) -> [..., H]. On the CPU a row's gradient is the sum over its ids in
// the opmath dtype (float for bfloat16 and half), rounded once, or added directly to the table's gradient place if it
// has one of such a dtype (core/autograd/leaf_gradient.h). On CUDA it is LibTorch's embedding_dense_backward over
// sorted ids: the same sum, rounded once to the table's dtype. Does not synchronise with the device. First-order
// gradients only.
[[nodiscard]] at::Tensor embedding_rows(const at::Tensor& table, const at::Tensor& ids);

}  // namespace d9d::kernels
