// The sum that unpermute and the backward of permute compute, without autograd.
//
// Legend   T tokens, k choices, N rows, H features
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

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

}  // namespace d9d::kernels::detail
