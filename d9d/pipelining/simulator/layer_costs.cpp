#include "d9d/pipelining/simulator/layer_costs.h"

#include <algorithm>

namespace d9d {
namespace {

// Returns costs in which each member x is f(a.x, b.x).
StageCosts each(const StageCosts& a, const StageCosts& b, const auto& f) {
  return {.forward = f(a.forward, b.forward),
          .backward = f(a.backward, b.backward),
          .backward_input = f(a.backward_input, b.backward_input),
          .backward_weight = f(a.backward_weight, b.backward_weight),
          .activation_bytes = f(a.activation_bytes, b.activation_bytes),
          .deferred_bytes = f(a.deferred_bytes, b.deferred_bytes),
          .resident_bytes = f(a.resident_bytes, b.resident_bytes)};
}

StageCosts of_one_layer(const StageCosts& stage, std::int64_t num_layers) {
  return each(stage, stage, [&](double cost, double) { return cost / static_cast<double>(num_layers); });
}

StageCosts of_end(const StageCosts& stage, const StageCosts& layer, std::int64_t num_layers) {
  return each(stage, layer, [&](double whole, double of_layer) {
    return std::max(0.0, whole - of_layer * static_cast<double>(num_layers));
  });
}

}  // namespace

std::optional<ModelCosts> layer_costs(const std::map<std::int64_t, std::vector<StageCosts>>& stages,
                                      const LayerDistribution& distribution) {
  if (stages.empty() || stages.rbegin()->first < 3) return std::nullopt;
  const auto& [num_stages, costs] = *stages.rbegin();
  const auto num_layers_of = [&](std::int64_t stage) {
    return layers_of_stage(distribution, {.num_stages = num_stages, .current_stage = stage}).size();
  };
  const std::int64_t last = num_stages - 1;
  ModelCosts model;
  for (std::int64_t stage = 0; stage <= last; ++stage) {
    const std::int64_t inner = std::clamp<std::int64_t>(stage, 1, last - 1);
    const StageCosts layer = of_one_layer(costs[static_cast<std::size_t>(inner)], num_layers_of(inner));
    const std::int64_t count = num_layers_of(stage);
    model.layers.insert(model.layers.end(), static_cast<std::size_t>(count), layer);
    if (stage == 0) model.pre = of_end(costs.front(), layer, count);
    if (stage == last) model.post = of_end(costs.back(), layer, count);
  }
  return model;
}

}  // namespace d9d
