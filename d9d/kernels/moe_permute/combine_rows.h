// The sum behind unpermute and behind permute's gradient, without autograd. T tokens, k choices, N rows, H features.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// rows: [N, H], slot_to_row: [T, k] int64 (-1: no row), weights: [T, k] or undefined (all one).
// Returns [T, H] in the dtype of rows: sum over choices of weights * rows, in at least fp32, in the order of choices.
[[nodiscard]] at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& slot_to_row, const at::Tensor& weights);

// Any device.
[[nodiscard]] at::Tensor combine_rows_aten(const at::Tensor& rows, const at::Tensor& slot_to_row,
                                           const at::Tensor& weights);
// Loops over tokens, does not make the [T * k, H] intermediate.
[[nodiscard]] at::Tensor combine_rows_cpu(const at::Tensor& rows, const at::Tensor& slot_to_row,
                                          const at::Tensor& weights);

// values: [N]. Returns [T, k]: the value of each slot's row, zero where there is none.
[[nodiscard]] at::Tensor spread_to_slots(const at::Tensor& values, const at::Tensor& slot_to_row);

}  // namespace d9d::kernels::detail
