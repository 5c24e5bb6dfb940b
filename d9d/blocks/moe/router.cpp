#include "d9d/blocks/moe/router.h"

#include "d9d/base/check.h"

namespace d9d {
namespace {

const TopKRouterConfig& checked(const TopKRouterConfig& config) {
  D9D_CHECK(config.top_k >= 1 && config.top_k <= config.num_experts, ConfigError,
            "[blocks::router] expected top_k in [1, num_experts = ", config.num_experts, "], got ", config.top_k, ".");
  return config;
}

}  // namespace

TopKRouter::TopKRouter(const TopKRouterConfig& configuration)
    : config(checked(configuration)),
      gate(register_module<Linear>("gate", LinearConfig{.in_features = config.hidden_size,
                                                        .out_features = config.num_experts,
                                                        .role = ParameterRole::kRouter})),
      expert_bias(config.has_expert_bias
                      ? register_buffer("expert_bias",
                                        {.shape = {config.num_experts}, .init = init::zeros(), .follows_dtype = false})
                      : nullptr) {}

RoutedTokens TopKRouter::forward(const at::Tensor& x) const {
  const at::Tensor logits = gate(x);
  const kernels::RoutingResult routing =
      kernels::topk_router({.logits = logits,
                            .top_k = config.top_k,
                            .renormalize = config.renormalize_probabilities,
                            .expert_bias = expert_bias ? std::optional<at::Tensor>(expert_bias->local) : std::nullopt});
  return {.logits = logits, .expert_ids = routing.indices, .probs = routing.probs};
}

}  // namespace d9d
