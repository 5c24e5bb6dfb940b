#include "d9d/blocks/head/language_modelling_head.h"

#include <cmath>

#include "d9d/blocks/embedding/split_weights.h"
#include "d9d/blocks/linear/tensor_parallel_context.h"

namespace d9d {

LanguageModellingHead::LanguageModellingHead(VocabularySplits splits, std::int64_t hidden_size,
                                             const CausalLMHeadConfig& own)
    : config(own),
      vocabulary(std::move(splits)),
      weights(register_module<SplitWeights>("lm_head", vocabulary, hidden_size,
                                            init::uniform(1.0 / std::sqrt(static_cast<double>(hidden_size))),
                                            ParameterRole::kHead)
                  ->weights) {}

LanguageModellingHead::LanguageModellingHead(VocabularySplits splits, std::vector<ParameterPtr> embedding_weights,
                                             const CausalLMHeadConfig& own)
    : config(own),
      vocabulary(std::move(splits)),
      weights(register_module<SplitWeights>("lm_head", vocabulary, embedding_weights)->weights) {}

double LanguageModellingHead::forward_flops(std::int64_t /*num_positions*/) const {
  const auto hidden_size = static_cast<double>(weights.front()->global_shape().back());
  return 2.0 * hidden_size * static_cast<double>(vocabulary.total());
}

std::optional<TensorPlan> LanguageModellingHead::tensor_plan(std::int64_t num_ranks) const {
  return TensorPlan{.input = TensorPlan::Edge::kShard,
                    .output = TensorPlan::Edge::kWhole,
                    .parameters = sharded_rows(weights, num_ranks)};
}

void LanguageModellingHead::set_tensor_parallel_context(TensorParallelContextPtr context) {
  set_vocabulary_context(context->vocabulary());
}

LanguageModellingOutput LanguageModellingHead::forward(const at::Tensor& hidden_states,
                                                       const LanguageModellingShared& shared) const {
  const HeadLoss loss{.gradients = backward_follows() ? HeadGradients::kInForward : HeadGradients::kInBackward,
                      .preset = config.preset};
  return {.cross_entropy = context_->cross_entropy(hidden_states, weights, shared.labels, loss)};
}

at::Tensor LanguageModellingHead::forward(const at::Tensor& hidden_states) const {
  return context_->logits(hidden_states, weights);
}

}  // namespace d9d
