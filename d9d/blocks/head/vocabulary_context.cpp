#include "d9d/blocks/head/vocabulary_context.h"

#include <ATen/ATen.h>

#include "d9d/base/ignore_index.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

namespace d9d {

at::Tensor LocalVocabularyContext::cross_entropy(const at::Tensor& hidden_states,
                                                 const std::vector<ParameterPtr>& weights, const at::Tensor& labels,
                                                 const HeadLoss& loss) const {
  std::vector<at::Tensor> locals;
  for (const ParameterPtr& weight : weights) locals.push_back(weight->local());
  const at::Tensor rows = hidden_states.reshape({-1, hidden_states.size(-1)});
  const kernels::LinearCrossEntropyOptions options = kernels::with_preset(
      {.ignore_index = kIgnoreIndex, .gradients_in_forward = loss.gradients == HeadGradients::kInForward}, loss.preset,
      rows.scalar_type());
  return kernels::linear_cross_entropy(rows, locals, labels.reshape({-1}), options).loss.view(labels.sizes());
}

at::Tensor LocalVocabularyContext::logits(const at::Tensor& hidden_states,
                                          const std::vector<ParameterPtr>& weights) const {
  std::vector<at::Tensor> parts;
  for (const ParameterPtr& weight : weights) parts.push_back(at::linear(hidden_states, weight->local()));
  return at::cat(parts, -1);
}

}  // namespace d9d
