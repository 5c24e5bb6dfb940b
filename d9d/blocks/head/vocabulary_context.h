// How a language-modelling head reaches its vocabulary. The local form has all of it; tensor parallelism puts another
// in its place.
//
// Legend   B batch, S positions, H hidden size, V vocabulary, W ranks (1 in the local form)
#pragma once

#include <memory>
#include <vector>

#include "d9d/core/dtensor/parameter.h"

namespace d9d {

class VocabularyContext {
 public:
  virtual ~VocabularyContext() = default;
  // Collective. hidden_states [B, S / W, H]; weights: the head's, in the order of the vocabulary; labels [B, S] int64
  // global ids or kIgnoreIndex -> [B, S], at least fp32, the same on all ranks.
  [[nodiscard]] virtual at::Tensor cross_entropy(const at::Tensor& hidden_states,
                                                 const std::vector<ParameterPtr>& weights,
                                                 const at::Tensor& labels) const = 0;
  // Collective. hidden_states [B, S / W, H] -> [B, S, V] on all ranks.
  [[nodiscard]] virtual at::Tensor logits(const at::Tensor& hidden_states,
                                          const std::vector<ParameterPtr>& weights) const = 0;
};
using VocabularyContextPtr = std::shared_ptr<const VocabularyContext>;

// All rows of the weights are here; any leading dims.
class LocalVocabularyContext final : public VocabularyContext {
 public:
  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& hidden_states, const std::vector<ParameterPtr>& weights,
                                         const at::Tensor& labels) const override;
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden_states,
                                  const std::vector<ParameterPtr>& weights) const override;
};

}  // namespace d9d
