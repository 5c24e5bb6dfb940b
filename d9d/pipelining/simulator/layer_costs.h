// Derives the costs of the layers and ends of a model from its measured stages.
//
// Example
//   const auto model = layer_costs({{4, of_four_stages}, {8, of_eight_stages}}, {.num_layers = 32});
//   model->layers[7].forward;                  // the cost of its stage, divided by the layers there
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "d9d/pipelining/api/stage_info.h"
#include "d9d/pipelining/simulator/choose_schedule.h"

namespace d9d {

// stages: measured costs of all stages, by the number of stages; the largest number is used. All layers of a stage get
// the same costs. Layers of the first and the last stage get the costs of a layer in the neighbouring stage, as if
// their layers were alike, which they are not in a model with dense layers at one end of its experts; the remaining
// costs of these two stages are those of the embedding (pre) and of the head (post). Returns nullopt for fewer than
// three stages, which do not tell the costs of layers from those of embedding and head.
[[nodiscard]] std::optional<ModelCosts> layer_costs(const std::map<std::int64_t, std::vector<StageCosts>>& stages,
                                                    const LayerDistribution& distribution);

}  // namespace d9d
