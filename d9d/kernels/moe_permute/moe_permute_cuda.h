// permute, unpermute and indices_to_multihot on a GPU that has kernels for the rows (has_cuda_kernels), without
// autograd. T tokens, k choices, N rows, H features.
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/moe_permute/indices_to_multihot.h"
#include "d9d/kernels/moe_permute/moe_permute.h"

namespace d9d::kernels::detail {

// Whether the kernels can carry one of these along with a row.
[[nodiscard]] bool is_carried(const at::Tensor& values);

// tokens [T, H], values [T, k] or undefined -> [N, H] and [N].
[[nodiscard]] std::pair<at::Tensor, at::Tensor> scatter_tokens_cuda(const at::Tensor& tokens, const at::Tensor& values,
                                                                    const at::Tensor& slot_to_row,
                                                                    std::int64_t num_rows);

// rows [N, H], weights [T, k] or undefined, values [N] or undefined -> combine_rows and spread_to_slots of them.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> combine_rows_cuda(const at::Tensor& rows, const at::Tensor& weights,
                                                                  const at::Tensor& values,
                                                                  const at::Tensor& slot_to_row);

// The gradients of combine_rows with weights in its N rows, in the dtype of grad_tokens, and in weights, in theirs;
// undefined where not wanted. grad_tokens [T, H]; rows may be undefined where the weights' is not wanted.
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
