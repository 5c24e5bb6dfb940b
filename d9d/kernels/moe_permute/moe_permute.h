// Moves token rows into the order of a TokenPermutation, and back by summing the rows of each token.
//
// Example (a MoE layer on one rank)
//   const auto permutation = build_token_permutation({.expert_ids = ids, .num_experts = num_experts,
//                                                     .num_rows = ids.numel()});
//   const auto [rows, row_probs] = permute(x, probs, permutation);
//   at::Tensor y = unpermute(experts(rows, row_probs, permutation.groups), permutation);
//
// Legend   T tokens, k experts per token, N rows, H features; see token_permutation.h
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/moe_permute/token_permutation.h"

namespace d9d::kernels {

struct PermutedTokens {
  at::Tensor hidden_states;  // [N, H], dtype of x
  at::Tensor probs;          // [N], dtype of probs
};

// x: [T, H], probs: [T, k]. Row r is token row_to_token[r] with the probability of slot row_to_slot[r]; a slot with
// probability zero has a row like any other. Differentiable in both, independently of each other; the gradient of x is
// summed in at least fp32, in the order of the choices. Does not synchronise with the device. Throws ConfigError for
// shapes that do not fit.
[[nodiscard]] PermutedTokens permute(const at::Tensor& x, const at::Tensor& probs, const TokenPermutation& permutation);

// y: [N, H]. Returns [T, H] in the dtype of y: the sum of each token's rows, weighted by merging_probs [T, k] if given;
// zero for a token without rows. Summed in at least fp32, in the order of the choices: deterministic.
// Differentiable in y and merging_probs. Does not synchronise with the device. Throws ConfigError for shapes that do
// not fit.
[[nodiscard]] at::Tensor unpermute(const at::Tensor& y, const TokenPermutation& permutation,
                                   const std::optional<at::Tensor>& merging_probs = std::nullopt);

}  // namespace d9d::kernels
