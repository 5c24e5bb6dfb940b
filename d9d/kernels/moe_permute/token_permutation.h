// The reordering that a MoE layer gives its tokens: rows sorted by expert, and by token inside an expert.
//
// Example (2 tokens, 2 experts a token, 3 experts)
//   ids = [[2, 0], [0, 1]]
//   const auto permutation = d9d::kernels::build_token_permutation({.expert_ids = ids, .num_experts = 3});
//   permutation.row_to_token   // [0, 1, 1, 0]: expert 0 gets tokens 0 and 1, expert 1 token 1, expert 2 token 0
//   permutation.slot_to_row    // [[3, 0], [1, 2]]
//   permutation.groups         // offsets [0, 2, 3, 4]
//
// T tokens, k experts a token, N rows (slots with an expert that lives here), E experts that live here.
// A slot is a (token, choice) pair, numbered token * k + choice.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/grouped_mm/expert_token_groups.h"

namespace d9d::kernels {

struct TokenPermutation {
  at::Tensor row_to_slot;    // [N] int64
  at::Tensor row_to_token;   // [N] int64
  at::Tensor slot_to_row;    // [T, k] int64, -1 where the slot's expert does not live here
  ExpertTokenGroups groups;  // E groups over the N rows
};

struct TokenPermutationRequest {
  const at::Tensor& expert_ids;  // [T, k] int64 in [0, E), or -1: not here
  std::int64_t num_experts;      // E
  // N where the caller knows it: T * k when no id is -1. Without it a GPU is waited for once.
  std::optional<std::int64_t> num_rows = std::nullopt;
};

// Linear in T * k, stable, the same on every device. On CPU throws ConfigError for ids out of range and for a wrong
// num_rows; on a GPU both are the caller's promise and nothing waits when num_rows is given.
[[nodiscard]] TokenPermutation build_token_permutation(const TokenPermutationRequest& request);

namespace detail {
// The implementations, for the same request; the ATen one runs on any device and sorts.
[[nodiscard]] TokenPermutation build_token_permutation_aten(const TokenPermutationRequest& request);
[[nodiscard]] TokenPermutation build_token_permutation_cpu(const TokenPermutationRequest& request);
[[nodiscard]] TokenPermutation build_token_permutation_cuda(const TokenPermutationRequest& request);
}  // namespace detail

}  // namespace d9d::kernels
