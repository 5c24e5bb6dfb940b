// Gradients of tensors that are parts of one fused projection: adjacent columns again, so that whoever goes backward
// through the projection multiplies all at once.
//
// Example
//   const auto [grad_gate, grad_up] = empty_column_slices(gate, up, 1);     // halves of one buffer if gate and up are
//
//   const at::Tensor grad_v = empty_behind_columns(v, columns_before(v, 2), 2);            // where v is made use of
//   if (is_only_reference(grad_v)) const auto q_and_k = column_slices_before(grad_v, q, k, 2);   // where q and k are
#pragma once

#include <optional>
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

// How many columns lie before those of `slice` in the rows of its buffer, where its storage begins with a row. 0 if the
// rows are not evenly spaced, or if there is one alone.
[[nodiscard]] std::int64_t columns_before(const at::Tensor& slice, std::int64_t num_column_dims);

// An uninitialised tensor of the sizes of `like`: the last columns of rows that have `count` before them, evenly spaced
// in a storage that no other tensor has.
[[nodiscard]] at::Tensor empty_behind_columns(const at::Tensor& like, std::int64_t count, std::int64_t num_column_dims);

// Aliases of the columns right before those of `slice`, of the sizes of a and b: a's, b's and those of `slice` are
// adjacent in this order. nullopt where its rows have no room for them, or where rows, dtypes or devices differ.
// Autograd does not know them as views. To write to them is_only_reference(slice) must hold.
[[nodiscard]] std::optional<std::pair<at::Tensor, at::Tensor>> column_slices_before(const at::Tensor& slice,
                                                                                    const at::Tensor& a,
                                                                                    const at::Tensor& b,
                                                                                    std::int64_t num_column_dims);

// Whether this is the only reference to the tensor, and the tensor the only one with its storage: nobody else can read
// the storage, whatever part of it, now or later. False if undefined.
[[nodiscard]] bool is_only_reference(const at::Tensor& tensor);

}  // namespace d9d::kernels::detail
