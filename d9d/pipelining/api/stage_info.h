// Which pipeline stage of a model this rank builds, and which layers belong to it.
//
// Example
//   const PipelineStageInfo stage{.num_stages = 4, .current_stage = 0};
//   const LayerRange layers = layers_of_stage({.num_layers = 16, .num_virtual_layers_post = 1}, stage);
//   for (std::int64_t i = layers.begin; i < layers.end; ++i) ...       // global layer indices
#pragma once

#include <cstdint>

namespace d9d {

struct PipelineStageInfo {
  std::int64_t num_stages = 1;
  std::int64_t current_stage = 0;

  [[nodiscard]] bool is_first() const { return current_stage == 0; }
  [[nodiscard]] bool is_last() const { return current_stage == num_stages - 1; }
};

// The layers of a whole model. Virtual layers represent the cost of other work (embedding before, head after) and are
// never built; they only move layers away from the stage that does that work.
struct LayerDistribution {
  std::int64_t num_layers = 0;
  std::int64_t num_virtual_layers_pre = 0;
  std::int64_t num_virtual_layers_post = 0;
};

struct LayerRange {
  std::int64_t begin = 0;  // global index
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

// Returns the layers of a stage. The model's layers, with the virtual ones, are distributed as evenly as possible; the
// first stages get the remainder. Throws ConfigError if any stage would have no layer.
[[nodiscard]] LayerRange layers_of_stage(const LayerDistribution& distribution, const PipelineStageInfo& stage);

}  // namespace d9d
