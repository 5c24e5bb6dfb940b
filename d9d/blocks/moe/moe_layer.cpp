#include "d9d/blocks/moe/moe_layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/core/collectives/position_ranks.h"
#include "d9d/kernels/moe_permute/select_rows.h"
#include "d9d/kernels/router/expert_counts.h"
#include "d9d/kernels/router/load_balancing.h"
#include "d9d/modules/product_flops.h"

namespace d9d {
namespace {

at::Tensor summed_over(const DeviceMesh& ranks, const at::Tensor& counts) {
  if (ranks.num_ranks() == 1) return counts;
  at::Tensor sum = counts.clone();
  ranks.communicator()->all_reduce(sum, ReduceOp::kSum).wait();
  return sum;
}

}  // namespace

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

double MoELayer::training_flops(std::int64_t /*num_positions*/) const {
  double of_an_expert = 0;
  grouped_experts->for_each_module([&](const std::string&, Module& module) {
    if (const auto* const linear = dynamic_cast<const GroupedLinear*>(&module))
      of_an_expert += product_flops(*linear->weight);
  });
  return static_cast<double>(config.top_k) * of_an_expert;
}

std::optional<TensorPlan> MoELayer::tensor_plan(std::int64_t /*num_ranks*/) const {
  TensorPlan plan{.input = TensorPlan::Edge::kShard, .output = TensorPlan::Edge::kShard};
  const auto replicate = [&](const Module& module) {
    for (const auto& [name, parameter] : module.named_parameters()) {
      if (parameter->mesh().axes().empty()) plan.parameters.push_back({parameter, Replicate{}});
    }
  };
  replicate(*router);
  replicate(*grouped_experts);
  if (shared_expert && shared_expert->gate) replicate(*shared_expert->gate);
  return plan;
}

MoEOutput MoELayer::forward(const at::Tensor& hidden_states, const std::optional<at::Tensor>& real_positions) const {
  const auto tokens_of = [&](const at::Tensor& x) {
    const at::Tensor all = x.reshape({-1, config.hidden_size});
    return real_positions ? kernels::select_rows(all, *real_positions) : all;
  };
  const at::Tensor tokens = tokens_of(hidden_states);
  const RoutedTokens routed = router(tokens);
  count_tokens(routed.expert_ids);
  const auto dispatched = dispatcher_->dispatch(tokens, routed.expert_ids, routed.probs);
  at::Tensor out = dispatched->combine(grouped_experts(dispatched->rows, dispatched->probs, dispatched->groups));
  if (shared_expert) {
    // Tensor parallelism divides its features, for which it gathers equal shards of the sequence, padding too.
    out = out + (shards_.num_ranks() > 1 ? tokens_of(shared_expert(hidden_states)) : shared_expert(tokens));
  }
  if (real_positions) out = kernels::place_rows(out, *real_positions, hidden_states.numel() / config.hidden_size);
  MoEOutput output{.hidden_states = out.view(hidden_states.sizes()), .auxiliary_loss = std::nullopt};
  if (config.auxiliary_loss_coefficient > 0.0) {
    output.auxiliary_loss = balance_loss(routed) * config.auxiliary_loss_coefficient;
  }
  return output;
}

void MoELayer::count_tokens(const at::Tensor& expert_ids) const {
  if (is_recomputing() || !is_training() || !at::GradMode::is_enabled()) return;
  kernels::add_expert_counts_(tokens_per_expert->local, expert_ids);
}

at::Tensor MoELayer::balance_loss(const RoutedTokens& routed) const {
  at::Tensor probabilities = kernels::expert_probability_sums(routed.logits);
  at::Tensor counts = replayed([&] {
    at::Tensor here = at::zeros_like(tokens_per_expert->local);
    kernels::add_expert_counts_(here, routed.expert_ids);
    return here;
  });
  if (shards_.num_ranks() > 1 || ranks_.of_positions.num_ranks() > 1) {
    const at::Tensor here = at::stack({probabilities, counts.to(probabilities.scalar_type())});
    const at::Tensor sums =
        sum_over_positions(here, {.of_context = PositionCut(ranks_.of_positions), .of_shards = shards_});
    probabilities = sums[0];
    counts = sums[1];
  }
  return kernels::load_balancing_loss({.probability_sums = probabilities, .counts = counts, .top_k = config.top_k});
}

at::Tensor MoELayer::step_counts() const { return summed_over(ranks_.of_tokens, tokens_per_expert->local); }

void MoELayer::on_step_finished(StepOutcome outcome) {
  if (router->expert_bias && outcome == StepOutcome::kUpdated) {
    kernels::update_expert_bias_(router->expert_bias->local, step_counts(), config.expert_bias_update_rate);
  }
  tokens_per_expert->local.zero_();
}

std::map<std::string, at::Tensor> MoELayer::own_step_statistics() const {
  const at::Tensor counts = step_counts().to(at::kDouble);
  const at::Tensor mean = counts.mean().clamp_min(1e-9);  // 0 before anything was routed
  return {{"expert_load_max", counts.max() / mean}, {"tokens_per_expert", counts}};
}

}  // namespace d9d
