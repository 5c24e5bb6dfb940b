// One [size, H] matrix for each vocabulary split, in a child module with the split's name. Embeddings and
// language-modelling heads use it, and it allows them to be tied.
#pragma once

#include <vector>

#include "d9d/blocks/embedding/vocabulary_splits.h"
#include "d9d/modules/module.h"

namespace d9d {

// The rows of each split over tensor-parallel ranks, unevenly if necessary. Throws ConfigError unless each rank gets
// rows of at least one split.
[[nodiscard]] std::vector<TensorPlan::PlacedParameter> sharded_rows(const std::vector<ParameterPtr>& weights,
                                                                    std::int64_t num_ranks);

// State: <split>.weight [size, H].
class SplitWeights : public Module {
 public:
  SplitWeights(const VocabularySplits& vocabulary, std::int64_t hidden_size, const Initializer& init,
               ParameterRole role);
  // Tied: registers the given parameters under this module's names.
  SplitWeights(const VocabularySplits& vocabulary, const std::vector<ParameterPtr>& shared);

  const std::vector<ParameterPtr> weights;  // in the order of the splits
};

}  // namespace d9d
