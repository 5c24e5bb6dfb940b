// Builds an optimiser from its configuration.
//
// Example
//   Optimizer optimizer = build_optimizer(config.optimizer, {{"weight", weight}}, config.determinism.base_seed);
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/optim/config.h"
#include "d9d/optim/optimizer.h"
#include "d9d/optim/parameter_groups.h"

namespace d9d {

// Collective over the ranks of each parameter's mesh if the optimiser is Muon. `seed`: for optimisers that draw random
// numbers. A group that matches none of `parameters` is no error: other ranks may have them.
[[nodiscard]] Optimizer build_optimizer(const OptimizerConfig& config, const std::vector<NamedParameter>& parameters,
                                        std::uint64_t seed = 0);

[[nodiscard]] ParameterGroups groups_of(const OptimizerConfig& config);

}  // namespace d9d
