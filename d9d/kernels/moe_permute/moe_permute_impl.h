// permute, unpermute and indices_to_multihot without autograd.
//
// Legend   T tokens, k choices, N rows, H features
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/moe_permute/indices_to_multihot.h"
#include "d9d/kernels/moe_permute/moe_permute.h"

namespace d9d::kernels::detail {

// The sum that unpermute and the backward of permute compute.
// rows: [N, H], slot_to_row: [T, k] int64 (-1: no row), weights: [T, k], or undefined for all ones.
// Returns [T, H] in the dtype of rows: the sum over a token's choices of weight * row, in at least fp32 and in the
// order of the choices.
[[nodiscard]] at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& slot_to_row, const at::Tensor& weights);

// Runs on any device.
[[nodiscard]] at::Tensor combine_rows_aten(const at::Tensor& rows, const at::Tensor& slot_to_row,
                                           const at::Tensor& weights);
// Loops over tokens, without the [T * k, H] intermediate.
[[nodiscard]] at::Tensor combine_rows_cpu(const at::Tensor& rows, const at::Tensor& slot_to_row,
                                          const at::Tensor& weights);

// values: [N]. Returns [T, k]: the value of each slot's row, zero for a slot without a row.
[[nodiscard]] at::Tensor spread_to_slots(const at::Tensor& values, const at::Tensor& slot_to_row);

// On a GPU with kernels for the rows (has_cuda_kernels):

// Whether the kernels can move one of `values` along with each row: elements of 2, 4 or 8 bytes.
[[nodiscard]] bool is_carried(const at::Tensor& values);

// tokens [T, H], values [T, k] or undefined -> the row of each slot, [N, H], and its value, [N] or undefined.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> scatter_tokens_cuda(const at::Tensor& tokens, const at::Tensor& values,
                                                                    const at::Tensor& slot_to_row,
                                                                    std::int64_t num_rows);

// rows [N, H], weights [T, k] or undefined, values [N] or undefined -> combine_rows(rows, slot_to_row, weights) and
// spread_to_slots(values, slot_to_row).
[[nodiscard]] std::pair<at::Tensor, at::Tensor> combine_rows_cuda(const at::Tensor& rows, const at::Tensor& weights,
                                                                  const at::Tensor& values,
                                                                  const at::Tensor& slot_to_row);

// The gradients of combine_rows with weights: that of the N = num_rows rows in the dtype of grad_tokens, that of the
// weights in the weights' dtype; undefined unless wanted. grad_tokens [T, H]; rows may be undefined if the gradient of
// the weights is not wanted.
struct CombineRowsWanted {
  bool rows;
  bool weights;
};
[[nodiscard]] std::pair<at::Tensor, at::Tensor> combine_rows_backward_cuda(
    const at::Tensor& grad_tokens, const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& slot_to_row,
    std::int64_t num_rows, const CombineRowsWanted& wanted);

[[nodiscard]] MultihotChoices indices_to_multihot_cuda(const at::Tensor& indices, const at::Tensor& probs,
                                                       std::int64_t num_experts);

}  // namespace d9d::kernels::detail
