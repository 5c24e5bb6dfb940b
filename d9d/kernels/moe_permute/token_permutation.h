// The reordering of tokens in a MoE layer: rows are sorted by expert, and by token within an expert.
//
// Example (2 tokens, 2 experts per token, 3 experts)
//   ids = [[2, 0], [0, 1]]
//   const auto permutation = d9d::kernels::build_token_permutation({.expert_ids = ids, .num_experts = 3});
//   permutation.row_to_token   // [0, 1, 1, 0]: expert 0 gets tokens 0 and 1, expert 1 token 1, expert 2 token 0
//   permutation.slot_to_row    // [[3, 0], [1, 2]]
//   permutation.groups         // offsets [0, 2, 3, 4]
//
// Legend   T tokens, k experts per token, E experts on this rank, N rows (slots with an expert on this rank). A slot is
//          a (token, choice) pair, numbered token * k + choice.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/grouped_mm/expert_token_groups.h"

namespace d9d::kernels {

struct TokenPermutation {
  at::Tensor row_to_slot;    // [N] int64
  at::Tensor row_to_token;   // [N] int64
  at::Tensor slot_to_row;    // [T, k] int64, -1 if the slot's expert is on another rank
  ExpertTokenGroups groups;  // E groups over the N rows
};

struct TokenPermutationRequest {
  const at::Tensor& expert_ids;  // [T, k] int64 in [0, E), or -1 for an expert on another rank
  std::int64_t num_experts;      // E
  // N if the caller knows it (T * k if no id is -1). Without it the call synchronises with a GPU once.
  std::optional<std::int64_t> num_rows = std::nullopt;
};

// Takes time linear in T * k; the order is stable and the same on every device. On a CPU throws ConfigError for ids out
// of range and for a wrong num_rows. On a GPU the caller guarantees both, and the call does not synchronise if num_rows
// is given.
[[nodiscard]] TokenPermutation build_token_permutation(const TokenPermutationRequest& request);

namespace detail {
// The implementations. The ATen one runs on any device, and sorts instead of counting.
[[nodiscard]] TokenPermutation build_token_permutation_aten(const TokenPermutationRequest& request);
[[nodiscard]] TokenPermutation build_token_permutation_cpu(const TokenPermutationRequest& request);
[[nodiscard]] TokenPermutation build_token_permutation_cuda(const TokenPermutationRequest& request);
}  // namespace detail

}  // namespace d9d::kernels
