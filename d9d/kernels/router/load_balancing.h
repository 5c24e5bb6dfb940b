// Keeping experts equally busy: an auxiliary loss, or a selection bias moved after each step.
//
// Example (loss, inside the step; bias, after it)
//   auto sums = d9d::kernels::expert_probability_sums(logits);
//   auto loss = d9d::kernels::load_balancing_loss({.probability_sums = sums, .counts = counts, .top_k = 8});
//   d9d::kernels::update_expert_bias_(router_bias, step_counts, 1e-3);
//
// T tokens, E experts.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// logits [T, E] of the router, any floating dtype -> [E], at least fp32: the softmax probability of each expert, summed
// over the tokens. Differentiable. Sums over ranks are sums of these.
[[nodiscard]] at::Tensor expert_probability_sums(const at::Tensor& logits);

// Both over the tokens that the balance is wanted for.
struct LoadBalancingRequest {
  const at::Tensor& probability_sums;  // [E] floating
  const at::Tensor& counts;            // [E] tokens each expert was chosen for
  std::int64_t top_k;                  // experts a token
};

// Scalar in the dtype of the sums: E * sum_e f_e * P_e with f_e = counts_e / T, the share of tokens that chose e, and
// P_e = probability_sums_e / T, its mean probability, for T = sum of counts / top_k tokens (Fedus et al. 2021,
// arXiv:2101.03961, equations 4-6, extended to top-k as in Qwen3-MoE: top_k when perfectly balanced); zero when nothing
// was counted. Linear in the sums: those of some of the tokens give a summand. Differentiable in the sums; counts are
// constants. Does not wait for the device. Throws ConfigError for shapes that do not fit.
[[nodiscard]] at::Tensor load_balancing_loss(const LoadBalancingRequest& request);

// bias: [E] floating, counts: [E]. bias += rate * sign(mean count - count): experts that got too little are chosen more
// often (Wang et al. 2024, arXiv:2408.15664, algorithm 1). In place, no gradient. Does not wait for the device.
void update_expert_bias_(at::Tensor& bias, const at::Tensor& counts, double rate);

}  // namespace d9d::kernels
