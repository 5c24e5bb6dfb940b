// Looks up rows of a table by index, with a gradient that is summed in at least float32.
//
// Example
//   const at::Tensor x = d9d::kernels::embedding_rows(table, ids);     // [V, H], [B, S] -> [B, S, H]
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// table [V, H] floating, ids [...] int64 in [0, V) -> [..., H]. A row's gradient is the sum over its ids in the opmath
// dtype (float for bfloat16 and half), rounded once: added directly to the table's gradient place if it has one
// (core/autograd/leaf_gradient.h), on the CPU one of the opmath dtype, on Hopper one of float or bfloat16 for rows of
// these. Otherwise the whole gradient of the table is made, on CUDA by LibTorch's embedding_dense_backward over sorted
// ids. Does not synchronise with the device. First-order gradients only.
[[nodiscard]] at::Tensor embedding_rows(const at::Tensor& table, const at::Tensor& ids);

}  // namespace d9d::kernels
