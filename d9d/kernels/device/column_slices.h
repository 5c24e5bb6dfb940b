// Gradients of two tensors that are parts of one fused projection: adjacent columns again, so that whoever goes
// backward through the projection multiplies both at once.
//
// Example
//   const auto [grad_gate, grad_up] = empty_column_slices(gate, up, 1);     // halves of one buffer if gate and up are
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// The last `num_column_dims` dims of each are its columns, the others its rows. True where a row of b's columns begins
// in memory where the row of a's columns ends, for rows of the same strides.
[[nodiscard]] bool are_adjacent_columns(const at::Tensor& a, const at::Tensor& b, std::int64_t num_column_dims);

// Uninitialised tensors of the sizes of a and b: adjacent columns of one contiguous buffer where a and b are adjacent,
// otherwise contiguous each.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> empty_column_slices(const at::Tensor& a, const at::Tensor& b,
                                                                    std::int64_t num_column_dims);

}  // namespace d9d::kernels::detail
