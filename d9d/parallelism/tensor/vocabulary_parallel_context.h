// A language-modelling head whose vocabulary is sharded over ranks. For the loss each rank computes the logits of its
// own rows of the weights, in chunks; besides hidden states only a few numbers per position are communicated,
// and no rank stores all logits.
#pragma once

#include "d9d/blocks/head/vocabulary_context.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Hidden states are sharded by sequence; weights, and B of an adapter, are Shard(0) over the ranks, possibly unevenly,
// and each rank has rows of at least one. The gradient of A is a summand, as that of a replicated parameter. A label
// outside the vocabulary throws ConfigError on the CPU; on other devices its loss is NaN.
class VocabularyParallelContext final : public VocabularyContext {
 public:
  explicit VocabularyParallelContext(DeviceMesh ranks) : ranks_(std::move(ranks)) {}  // one axis
  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& hidden_states, const HeadWeights& weights,
                                         const at::Tensor& labels, const HeadLoss& loss) const override;
  // Every rank gets all logits, and must compute the same gradient from them.
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden_states, const HeadWeights& weights) const override;

 private:
  DeviceMesh ranks_;
};

}  // namespace d9d
