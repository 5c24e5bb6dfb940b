// Gradients of tensors that are adjacent columns of one fused projection's output. They are made adjacent columns of
// one buffer too, so that the projection's backward multiplies them in one GEMM.
//
// Example
//   const auto [grad_gate, grad_up] = empty_column_slices(gate, up, 1);     // halves of one buffer if gate and up are
//
//   const at::Tensor grad_v = empty_behind_columns(v, columns_before(v, 2), 2);   // in v's backward
//   if (is_only_reference(grad_v))                                                // in the backward of q and k
//     const auto q_and_k = column_slices_before(grad_v, q, k, 2);
//
// The last `num_column_dims` dims of a tensor are its columns, the dims before them its rows.
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// Whether a and b have the same rows, with the same strides, and each row of b begins in memory where the row of a
// ends.
[[nodiscard]] bool are_adjacent_columns(const at::Tensor& a, const at::Tensor& b, std::int64_t num_column_dims);

// Uninitialised tensors of the sizes of a and b. They are adjacent columns of one contiguous buffer if a and b are
// adjacent columns; otherwise each is contiguous.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> empty_column_slices(const at::Tensor& a, const at::Tensor& b,
                                                                    std::int64_t num_column_dims);

// Whether the elements of each row are contiguous.
[[nodiscard]] bool has_dense_columns(const at::Tensor& tensor, std::int64_t num_column_dims);

// The number of columns that precede those of `slice` in the rows of its buffer, on the assumption that the storage
// begins with a row. 0 if the rows are not evenly spaced, or if there is only one.
[[nodiscard]] std::int64_t columns_before(const at::Tensor& slice, std::int64_t num_column_dims);

// An uninitialised tensor of the sizes of `like` in a new storage, whose evenly spaced rows begin with `count` further
// columns; the tensor is the columns after these. No other tensor has the storage.
[[nodiscard]] at::Tensor empty_behind_columns(const at::Tensor& like, std::int64_t count, std::int64_t num_column_dims);

// Two tensors of the sizes of a and b in the storage of `slice`, right before its columns: the columns of the first, of
// the second and of `slice` are adjacent in this order. nullopt if the rows of `slice` have no room for them, or if its
// row sizes, dtype or device differ from those of a or b. Autograd does not track them as views. They may be written
// only if is_only_reference(slice).
[[nodiscard]] std::optional<std::pair<at::Tensor, at::Tensor>> column_slices_before(const at::Tensor& slice,
                                                                                    const at::Tensor& a,
                                                                                    const at::Tensor& b,
                                                                                    std::int64_t num_column_dims);

// Whether this is the only reference to the tensor, and no other tensor has its storage: then no other code can read
// any part of the storage, now or later. False if the tensor is undefined.
[[nodiscard]] bool is_only_reference(const at::Tensor& tensor);

}  // namespace d9d::kernels::detail
