// The loss of a head whose vocabulary is cut over ranks: each computes with its own rows of the weights, in chunks, and
// only sums of one number a position travel beside the hidden states. No rank ever has the logits.
#pragma once

#include "d9d/blocks/head/vocabulary_context.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Hidden states are shards of the sequence; weights are Shard(0) over the ranks, unevenly; each rank has rows of some.
// A label outside of the vocabulary is a ConfigError on the CPU, elsewhere its loss is NaN.
class VocabularyParallelContext final : public VocabularyContext {
 public:
  explicit VocabularyParallelContext(DeviceMesh ranks) : ranks_(std::move(ranks)) {}  // one axis
  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& hidden_states, const std::vector<ParameterPtr>& weights,
                                         const at::Tensor& labels) const override;
  // Gradients: all ranks compute the same from the same logits.
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden_states,
                                  const std::vector<ParameterPtr>& weights) const override;

 private:
  DeviceMesh ranks_;
};

}  // namespace d9d
