// One [size, H] matrix a vocabulary split, each in a child module of the split's name: what embeddings and
// language-modelling heads share, and what ties one to the other.
#pragma once

#include <vector>

#include "d9d/blocks/embedding/vocabulary_splits.h"
#include "d9d/modules/module.h"

namespace d9d {

// State: <split>.weight [size, H].
class SplitWeights : public Module {
 public:
  SplitWeights(const VocabularySplits& vocabulary, std::int64_t hidden_size, const Initializer& init);
  // Tied: registers the given parameters under this module's names.
  SplitWeights(const VocabularySplits& vocabulary, const std::vector<ParameterPtr>& shared);

  const std::vector<ParameterPtr> weights;  // in the order of the splits
};

}  // namespace d9d
