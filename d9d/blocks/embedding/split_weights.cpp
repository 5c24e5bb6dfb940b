#include "d9d/blocks/embedding/split_weights.h"

#include "d9d/base/check.h"

namespace d9d {
namespace {

struct SplitWeight : Module {
  explicit SplitWeight(const ParameterPtr& weight) { register_parameter("weight", weight); }
};

std::vector<ParameterPtr> make_weights(const VocabularySplits& vocabulary, std::int64_t hidden_size,
                                       const Initializer& init) {
  vocabulary.validate();
  std::vector<ParameterPtr> weights;
  for (const std::string& name : vocabulary.order) {
    weights.push_back(
        std::make_shared<Parameter>(ParameterSpec{.shape = {vocabulary.sizes.at(name), hidden_size}, .init = init}));
  }
  return weights;
}

}  // namespace

SplitWeights::SplitWeights(const VocabularySplits& vocabulary, std::int64_t hidden_size, const Initializer& init)
    : SplitWeights(vocabulary, make_weights(vocabulary, hidden_size, init)) {}

SplitWeights::SplitWeights(const VocabularySplits& vocabulary, const std::vector<ParameterPtr>& shared)
    : weights(shared) {
  D9D_ASSERT(shared.size() == vocabulary.order.size(), "one matrix a split");
  for (std::size_t i = 0; i < shared.size(); ++i) register_module<SplitWeight>(vocabulary.order[i], shared[i]);
}

}  // namespace d9d
