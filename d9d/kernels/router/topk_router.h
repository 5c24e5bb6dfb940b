// Top-k routing: a softmax over experts and the k best experts of each token, optionally with renormalised
// probabilities.
//
// Example
//   const auto routing = d9d::kernels::topk_router({.logits = gate(x), .top_k = 8, .renormalize = true});
//   routing.indices    // [T, 8] int64, best first
//   routing.probs      // [T, 8] fp32, or fp64 for fp64 logits
//
// Legend   T tokens, E experts, k = top_k
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

struct RoutingRequest {
  const at::Tensor& logits;  // [T, E], any floating dtype
  std::int64_t top_k;        // in [1, E]
  bool renormalize = false;  // divide by the sum of the k probabilities + 1e-20
  // [E], added to the probabilities for the choice only (Wang et al. 2024, arXiv:2408.15664); gets no gradient.
  std::optional<at::Tensor> expert_bias = std::nullopt;
};

struct RoutingResult {
  at::Tensor indices;  // [T, k] int64, by descending probability + bias; among equals the lower index comes first
  at::Tensor probs;    // [T, k] softmax probabilities, at least fp32
};

// probs are differentiable in logits. The softmax runs in at least fp32. For the same probabilities the choice is the
// same on every device. Does not synchronise with the device. Throws ConfigError for a top_k or shapes that do not fit.
[[nodiscard]] RoutingResult topk_router(const RoutingRequest& request);

namespace detail {
// scores: [T, E]. Returns [T, k] int64: the indices of the k greatest scores in descending order, among equals the
// lower index first.
[[nodiscard]] at::Tensor select_top_k(const at::Tensor& scores, std::int64_t top_k);
[[nodiscard]] at::Tensor select_top_k_aten(const at::Tensor& scores, std::int64_t top_k);  // any device
[[nodiscard]] at::Tensor select_top_k_cpu(const at::Tensor& scores, std::int64_t top_k);   // sorts only the k best
}  // namespace detail

}  // namespace d9d::kernels
