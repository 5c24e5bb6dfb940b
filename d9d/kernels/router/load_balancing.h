// Balances the load of experts, by an auxiliary loss or by a selection bias that is updated after each step.
//
// Example (loss, inside the step; bias, after it)
//   auto sums = d9d::kernels::expert_probability_sums(logits);
//   auto loss = d9d::kernels::load_balancing_loss({.probability_sums = sums, .counts = counts, .top_k = 8});
//   d9d::kernels::update_expert_bias_(router_bias, step_counts, 1e-3);
//
// Legend   T tokens, E experts
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// logits [T, E] of the router, any floating dtype -> [E], at least fp32: the softmax probability of each expert, summed
// over the tokens. Differentiable. The results of ranks with different tokens may be added up.
[[nodiscard]] at::Tensor expert_probability_sums(const at::Tensor& logits);

// Sums and counts over the same tokens, those over which experts are to be balanced.
struct LoadBalancingRequest {
  const at::Tensor& probability_sums;  // [E] floating
  const at::Tensor& counts;            // [E], the number of tokens that chose each expert
  std::int64_t top_k;                  // experts per token
};

// Scalar in the dtype of the sums: E * sum_e f_e * P_e with f_e = counts_e / T, the share of tokens that chose e, and
// P_e = probability_sums_e / T, its mean probability, for T = sum of counts / top_k tokens (Fedus et al. 2021,
// arXiv:2101.03961, equations 4-6, extended to top-k as in Qwen3-MoE: top_k when perfectly balanced); zero if nothing
// was counted. It is linear in the sums, so the losses for sums over parts of the tokens, with the same counts, add up
// to the loss. Differentiable in the sums; counts are constants. Does not synchronise with the device. Throws
// ConfigError for shapes that do not fit.
[[nodiscard]] at::Tensor load_balancing_loss(const LoadBalancingRequest& request);

// bias: [E] floating, counts: [E]. bias += rate * sign(mean count - count), so that experts with fewer tokens than the
// mean are chosen more often (Wang et al. 2024, arXiv:2408.15664, algorithm 1). In place, not differentiable. Does not
// synchronise with the device. Throws ConfigError for shapes that do not fit.
void update_expert_bias_(at::Tensor& bias, const at::Tensor& counts, double rate);

}  // namespace d9d::kernels
