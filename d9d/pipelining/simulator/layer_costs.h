// What the layers and ends of a model cost, from measured stages of it.
//
// Example
//   const auto model = layer_costs({{4, of_four_stages}, {8, of_eight_stages}}, {.num_layers = 32});
//   model->layers[7].forward;                  // that of its stage, divided by the layers there
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "d9d/pipelining/api/stage_info.h"
#include "d9d/pipelining/simulator/choose_schedule.h"

namespace d9d {

// stages: by their number; the largest number is used. Layers of one stage cost the same; those of the first and the
// last stage what those of the stage beside them do, and the rest is the end's. Nothing for less than three stages,
// which do not tell layers from ends.
[[nodiscard]] std::optional<ModelCosts> layer_costs(const std::map<std::int64_t, std::vector<StageCosts>>& stages,
                                                    const LayerDistribution& distribution);

}  // namespace d9d
