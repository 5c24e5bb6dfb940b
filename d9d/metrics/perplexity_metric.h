// The perplexity of a language model: exp of the mean cross-entropy of all tokens, over microbatches and ranks.
//
// Example
//   PerplexityMetric perplexity;
//   perplexity.update(output.head.cross_entropy, labels != kIgnoreIndex);       // both [B, S]
//   perplexity.compute();
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/aggregates.h"

namespace d9d {

class PerplexityMetric final : public Metric {
 public:
  // cross_entropy: of tokens, in nats, with their weights, 0 for those that do not count; or a mean over tokens with
  // their number. As MeanMetric::update().
  void update(const at::Tensor& cross_entropy, const at::Tensor& weights) { mean_.update(cross_entropy, weights); }
  [[nodiscard]] at::Tensor compute() const override;  // NaN without tokens
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return mean_.accumulators(); }

 private:
  MeanMetric mean_;
};

}  // namespace d9d
