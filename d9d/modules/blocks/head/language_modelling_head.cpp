#include "d9d/modules/blocks/head/language_modelling_head.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "d9d/modules/blocks/embedding/split_weights.h"

namespace d9d {
namespace {

std::vector<at::Tensor> locals(const std::vector<ParameterPtr>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const ParameterPtr& parameter : parameters) tensors.push_back(parameter->local());
  return tensors;
}

}  // namespace

LanguageModellingHead::LanguageModellingHead(VocabularySplits splits, std::int64_t hidden_size)
    : vocabulary(std::move(splits)),
      weights(register_module<SplitWeights>("lm_head", vocabulary, hidden_size,
                                            init::uniform(1.0 / std::sqrt(static_cast<double>(hidden_size))))
                  ->weights) {}

LanguageModellingHead::LanguageModellingHead(VocabularySplits splits, std::vector<ParameterPtr> embedding_weights)
    : vocabulary(std::move(splits)),
      weights(register_module<SplitWeights>("lm_head", vocabulary, embedding_weights)->weights) {}

LanguageModellingOutput LanguageModellingHead::forward(const at::Tensor& hidden_states,
                                                       const LanguageModellingShared& shared) const {
  const at::Tensor rows = hidden_states.reshape({-1, hidden_states.size(-1)});
  const at::Tensor loss =
      kernels::linear_cross_entropy(rows, locals(weights), shared.labels.reshape({-1}), {.ignore_index = kIgnoreIndex})
          .loss;
  return {.cross_entropy = loss.view(shared.labels.sizes())};
}

at::Tensor LanguageModellingHead::forward(const at::Tensor& hidden_states) const {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& weight : locals(weights)) parts.push_back(at::linear(hidden_states, weight));
  return at::cat(parts, -1);
}

}  // namespace d9d
