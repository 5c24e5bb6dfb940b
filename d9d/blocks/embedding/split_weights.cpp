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
  std::vector<std::int64_t> sizes;
  for (const ParameterPtr& weight : weights) sizes.push_back(weight->global_shape()[0]);
  const auto all_have_rows = [&](std::int64_t ranks) {
    return std::ranges::any_of(sizes,
                               [&](std::int64_t size) { return chunk_range(size, ranks - 1, ranks).numel() > 0; });
  };
  std::int64_t possible = num_ranks;
  while (!all_have_rows(possible)) --possible;
  D9D_CHECK(possible == num_ranks, ConfigError, "[blocks::vocabulary] expected a vocabulary that gives each of ",
            num_ranks, " tensor-parallel ranks some rows of some split, got splits of ", at::IntArrayRef(sizes),
            " rows that leave the last rank none. Set mesh.tensor_parallel to ", possible, ", or join splits.");
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
