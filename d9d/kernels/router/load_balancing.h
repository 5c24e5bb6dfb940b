// Keeping experts equally busy: an auxiliary loss, or a selection bias moved after each step.
//
// Example (loss, inside the step; bias, after it)
//   auto loss = d9d::kernels::load_balancing_loss({.logits = logits, .counts = step_counts, .top_k = 8});
//   d9d::kernels::update_expert_bias_(router_bias, step_counts, 1e-3);
//
// T tokens, E experts.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

struct LoadBalancingRequest {
  const at::Tensor& logits;  // [T, E] of the router, any floating dtype
  const at::Tensor& counts;  // [E] tokens each expert was chosen for, over the tokens the balance is wanted for (these,
                             // or those of the whole step on all ranks)
  std::int64_t top_k;        // experts a token
};

// Scalar, at least fp32: E * sum_e f_e * P_e with f_e = counts_e / (sum of counts / top_k), the share of tokens that
// chose e, and P_e the mean over T of the softmax probability of e (Fedus et al. 2021, arXiv:2101.03961, equations 4-6,
// extended to top-k as in Qwen3-MoE: top_k when perfectly balanced); zero when nothing was counted. Differentiable in
// logits; counts are constants. Does not wait for the device. Throws ConfigError for shapes that do not fit.
[[nodiscard]] at::Tensor load_balancing_loss(const LoadBalancingRequest& request);

// bias: [E] floating, counts: [E]. bias += rate * sign(mean count - count): experts that got too little are chosen more
// often (Wang et al. 2024, arXiv:2408.15664, algorithm 1). In place, no gradient. Does not wait for the device.
void update_expert_bias_(at::Tensor& bias, const at::Tensor& counts, double rate);

}  // namespace d9d::kernels
