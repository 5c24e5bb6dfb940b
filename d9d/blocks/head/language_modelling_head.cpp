#include "d9d/blocks/head/language_modelling_head.h"

#include <cmath>

#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/modules/product_flops.h"

namespace d9d {

LanguageModellingHead::LanguageModellingHead(VocabularySplits splits, std::int64_t hidden_size,
                                             const CausalLMHeadConfig& own)
    : config(own),
      vocabulary(std::move(splits)),
      is_tied(false),
      weights(register_module<SplitWeights>("lm_head", vocabulary, hidden_size,
                                            init::uniform(1.0 / std::sqrt(static_cast<double>(hidden_size))),
                                            ParameterRole::kHead)
                  ->weights) {}

LanguageModellingHead::LanguageModellingHead(VocabularySplits splits, std::vector<ParameterPtr> embedding_weights,
                                             const CausalLMHeadConfig& own)
    : config(own),
      vocabulary(std::move(splits)),
      is_tied(true),
      weights(register_module<SplitWeights>("lm_head", vocabulary, embedding_weights)->weights) {}

double LanguageModellingHead::training_flops(std::int64_t /*num_positions*/) const {
  double flops = 0;
  for (const ParameterPtr& weight : weights) flops += product_flops(*weight);
  if (!adapter()) return flops;
  for (const ParameterPtr& weight : adapter()->b->weights) flops += product_flops(*weight);
  return flops;
}

void LanguageModellingHead::add_adapter(const LowRankConfig& low_rank) {
  const auto a = make_module<Linear>(LinearConfig{.in_features = weights.front()->global_shape().back(),
                                                  .out_features = low_rank.rank,
                                                  .role = ParameterRole::kHead});
  put_new_adapter(a, make_module<SplitWeights>(vocabulary, low_rank.rank, init::zeros(), ParameterRole::kHead),
                  low_rank, weights.front()->local().scalar_type());
}

std::optional<TensorPlan> LanguageModellingHead::tensor_plan(std::int64_t num_ranks) const {
  TensorPlan plan{.input = TensorPlan::Edge::kShard,
                  .output = TensorPlan::Edge::kWhole,
                  .parameters = sharded_rows(weights, num_ranks)};
  if (adapter()) {
    plan.parameters.push_back({adapter()->a->weight, Replicate{}});
    for (const auto& placed : sharded_rows(adapter()->b->weights, num_ranks)) plan.parameters.push_back(placed);
  }
  return plan;
}

void LanguageModellingHead::set_tensor_parallel_context(TensorParallelContextPtr context) {
  set_vocabulary_context(context->vocabulary());
}

LanguageModellingOutput LanguageModellingHead::forward(const at::Tensor& hidden_states,
                                                       const LanguageModellingShared& shared) const {
  const HeadLoss loss{.gradients = backward_follows() ? HeadGradients::kInForward : HeadGradients::kInBackward,
                      .preset = config.preset};
  return {.cross_entropy = context_->cross_entropy(hidden_states, {weights, adapter()}, shared.labels, loss)};
}

at::Tensor LanguageModellingHead::forward(const at::Tensor& hidden_states) const {
  return context_->logits(hidden_states, {weights, adapter()});
}

}  // namespace d9d
