#include "d9d/blocks/head/vocabulary_context.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "d9d/base/ignore_index.h"
#include "d9d/kernels/linear/gemm.h"

namespace d9d {

namespace {

std::vector<at::Tensor> locals_of(const std::vector<ParameterPtr>& weights) {
  std::vector<at::Tensor> locals;
  for (const ParameterPtr& weight : weights) locals.push_back(weight->local());
  return locals;
}

// x [..., H] times weight [V, H]^T -> [..., V].
at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  if (!x.is_cpu() || c10::GradMode::is_enabled()) return at::linear(x, weight);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return kernels::detail::rows_product(x.reshape({-1, x.size(-1)}), weight).view(sizes);
}

}  // namespace

std::vector<at::Tensor> HeadWeights::local_rows() const { return locals_of(rows); }

std::optional<kernels::LowRankLogits> HeadWeights::low_rank(const at::Tensor& hidden_states) const {
  if (!adapter) return std::nullopt;
  const at::Tensor hidden = adapter->scaled_hidden(hidden_states);
  return kernels::LowRankLogits{.hidden = hidden.reshape({-1, hidden.size(-1)}),
                                .weights = locals_of(adapter->b->weights)};
}

std::vector<at::Tensor> HeadWeights::local_logits(const at::Tensor& hidden_states) const {
  std::vector<at::Tensor> logits;
  for (const ParameterPtr& weight : rows) logits.push_back(product(hidden_states, weight->local()));
  if (!adapter) return logits;
  const at::Tensor hidden = adapter->scaled_hidden(hidden_states);
  for (std::size_t split = 0; split < rows.size(); ++split) {
    logits[split] = logits[split] + at::linear(hidden, adapter->b->weights[split]->local());
  }
  return logits;
}

at::Tensor LocalVocabularyContext::cross_entropy(const at::Tensor& hidden_states, const HeadWeights& weights,
                                                 const at::Tensor& labels, const HeadLoss& loss) const {
  const at::Tensor rows = hidden_states.reshape({-1, hidden_states.size(-1)});
  const kernels::LinearCrossEntropyOptions options =
      kernels::with_preset({.low_rank = weights.low_rank(hidden_states),
                            .ignore_index = kIgnoreIndex,
                            .gradients_in_forward = loss.gradients == HeadGradients::kInForward},
                           loss.preset, rows.scalar_type());
  return kernels::linear_cross_entropy(rows, weights.local_rows(), labels.reshape({-1}), options)
      .loss.view(labels.sizes());
}

at::Tensor LocalVocabularyContext::logits(const at::Tensor& hidden_states, const HeadWeights& weights) const {
  return at::cat(weights.local_logits(hidden_states), -1);
}

}  // namespace d9d
