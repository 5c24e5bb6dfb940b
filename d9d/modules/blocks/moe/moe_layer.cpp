#include "d9d/modules/blocks/moe/moe_layer.h"

#include <ATen/ATen.h>

#include "d9d/kernels/router/load_balancing.h"

namespace d9d {

MoELayer::MoELayer(const MoELayerConfig& configuration)
    : config(configuration),
      router(register_module<TopKRouter>("router",
                                         TopKRouterConfig{.hidden_size = config.hidden_size,
                                                          .num_experts = config.num_experts,
                                                          .top_k = config.top_k,
                                                          .renormalize_probabilities = config.renormalize_probabilities,
                                                          .has_expert_bias = config.expert_bias_update_rate > 0.0})),
      grouped_experts(register_module<GroupedSwiGLU>(
          "grouped_experts", GroupedSwiGLUConfig{config.hidden_size, config.intermediate_size, config.num_experts,
                                                 config.grouped_mm_backend})),
      shared_expert(config.shared_expert
                        ? register_module<SharedSwiGLU>("shared_expert", config.hidden_size, *config.shared_expert)
                        : nullptr),
      tokens_per_expert(register_buffer(
          "tokens_per_expert",
          {.shape = {config.num_experts}, .dtype = at::kLong, .init = init::zeros(), .is_persistent = false})),
      dispatcher_(std::make_unique<LocalTokenDispatcher>(config.num_experts)) {}

MoEOutput MoELayer::forward(const at::Tensor& hidden_states) const {
  const at::Tensor tokens = hidden_states.reshape({-1, config.hidden_size});
  const RoutedTokens routed = router(tokens);
  count_tokens(routed.indices);
  const auto dispatched = dispatcher_->dispatch(tokens, routed.indices, routed.probs);
  at::Tensor out = dispatched->combine(grouped_experts(dispatched->rows, dispatched->probs, dispatched->groups));
  if (shared_expert) out = out + shared_expert(tokens);
  MoEOutput output{.hidden_states = out.view(hidden_states.sizes()), .auxiliary_loss = std::nullopt};
  if (config.auxiliary_loss_coefficient > 0.0) {
    const at::Tensor counts = replayed([this] { return tokens_per_expert->local.clone(); });
    output.auxiliary_loss =
        kernels::load_balancing_loss({.logits = routed.logits, .counts = counts, .top_k = config.top_k}) *
        config.auxiliary_loss_coefficient;
  }
  return output;
}

void MoELayer::count_tokens(const at::Tensor& expert_indices) const {
  if (is_recomputing() || !is_training()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor chosen = expert_indices.reshape({-1});
  tokens_per_expert->local.scatter_add_(0, chosen, at::ones_like(chosen));
}

at::Tensor MoELayer::summed_counts() const {
  if (count_ranks_.num_ranks() == 1) return tokens_per_expert->local;
  at::Tensor counts = tokens_per_expert->local.clone();
  count_ranks_.communicator()->all_reduce(counts, ReduceOp::kSum).wait();
  return counts;
}

void MoELayer::on_step_finished() {
  if (router->expert_bias) {
    kernels::update_expert_bias_(router->expert_bias->local, summed_counts(), config.expert_bias_update_rate);
  }
  tokens_per_expert->local.zero_();
}

std::map<std::string, at::Tensor> MoELayer::own_step_statistics() const {
  const at::Tensor counts = summed_counts().to(at::kDouble);
  const at::Tensor mean = counts.mean().clamp_min(1e-9);  // 0 before anything was routed
  return {{"expert_load_max", counts.max() / mean}};
}

}  // namespace d9d
