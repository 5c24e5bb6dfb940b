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

// Returns the costs of each layer, of the embedding (pre) and of the head (post). `stages` has the measured costs of
// all stages, by the number of stages; the largest number is used. All layers of a stage get the same costs. The first
// and the last stage also run the embedding and the head, so their layers get the costs of a layer of the neighbouring
// stage, and pre and post get the rest of the stage's costs. This is inexact if layers differ, as in a model that has
// dense layers at one end and experts elsewhere. Returns nullopt for fewer than three stages: then no stage consists of
// layers alone.
[[nodiscard]] std::optional<ModelCosts> layer_costs(const std::map<std::int64_t, std::vector<StageCosts>>& stages,
                                                    const LayerDistribution& distribution);

}  // namespace d9d
