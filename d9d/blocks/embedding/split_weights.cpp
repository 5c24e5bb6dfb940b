#include "d9d/blocks/embedding/split_weights.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {
namespace {

struct SplitWeight : Module {
  explicit SplitWeight(const ParameterPtr& weight) { register_parameter("weight", weight); }
};

std::vector<ParameterPtr> make_weights(const VocabularySplits& vocabulary, std::int64_t hidden_size,
                                       const Initializer& init, ParameterRole role) {
  vocabulary.validate();
  std::vector<ParameterPtr> weights;
  for (const std::string& name : vocabulary.order) {
    weights.push_back(std::make_shared<Parameter>(
        ParameterSpec{.shape = {vocabulary.sizes.at(name), hidden_size}, .init = init, .role = role}));
  }
  return weights;
}

}  // namespace

std::vector<TensorPlan::PlacedParameter> sharded_rows(const std::vector<ParameterPtr>& weights,
                                                      std::int64_t num_ranks) {
  std::int64_t total = 0;
  const bool all_have_rows = std::ranges::any_of(weights, [&](const ParameterPtr& weight) {
    total += weight->global_shape()[0];
    return chunk_range(weight->global_shape()[0], num_ranks - 1, num_ranks).numel() > 0;
  });
  D9D_CHECK(all_have_rows, ConfigError, "[blocks::vocabulary] expected a vocabulary that gives each of ", num_ranks,
            " tensor-parallel ranks some rows of some split, got splits of ", total,
            " rows that leave the last rank none. Lower mesh.tensor_parallel or join splits.");
  std::vector<TensorPlan::PlacedParameter> placed;
  for (const ParameterPtr& weight : weights) placed.push_back({weight, Shard{0}});
  return placed;
}

SplitWeights::SplitWeights(const VocabularySplits& vocabulary, std::int64_t hidden_size, const Initializer& init,
                           ParameterRole role)
    : SplitWeights(vocabulary, make_weights(vocabulary, hidden_size, init, role)) {}

SplitWeights::SplitWeights(const VocabularySplits& vocabulary, const std::vector<ParameterPtr>& shared)
    : weights(shared) {
  D9D_ASSERT(shared.size() == vocabulary.order.size(), "one matrix a split");
  for (std::size_t i = 0; i < shared.size(); ++i) register_module<SplitWeight>(vocabulary.order[i], shared[i]);
}

}  // namespace d9d
