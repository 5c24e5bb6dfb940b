// Chooses experts for tokens: a softmax over a projection, then the top k, optionally renormalised.
#pragma once

#include "d9d/blocks/linear/linear.h"
#include "d9d/kernels/router/topk_router.h"

namespace d9d {

struct TopKRouterConfig {
  std::int64_t hidden_size = 0;
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
  bool renormalize_probabilities = true;
  bool has_expert_bias = false;  // affects only the choice of experts; load balancing adjusts it
};

struct RoutedTokens {
  at::Tensor logits;      // [T, E]
  at::Tensor expert_ids;  // [T, k] int64
  at::Tensor probs;       // [T, k], at least fp32
  static constexpr auto fields() {
    return record<RoutedTokens>(field("logits", &RoutedTokens::logits), field("expert_ids", &RoutedTokens::expert_ids),
                                field("probs", &RoutedTokens::probs));
  }
};

// State: gate.weight [E, H], and expert_bias [E] (a float32 buffer, initially zeros) if has_expert_bias.
class TopKRouter : public Module {
 public:
  explicit TopKRouter(const TopKRouterConfig& config);
  // x [T, H].
  [[nodiscard]] RoutedTokens forward(const at::Tensor& x) const;

  const TopKRouterConfig config;
  const ModulePtr<Linear> gate;
  const BufferPtr expert_bias;  // null without has_expert_bias
};

}  // namespace d9d
