// Builds an optimiser from its configuration.
//
// Example
//   Optimizer optimizer = build_optimizer(config.optimizer, {{"weight", weight}}, config.determinism.base_seed);
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/optim/config.h"
#include "d9d/optim/optimizer.h"

namespace d9d {

// The optimiser has one group of all `parameters`. `seed`: for optimisers that draw random numbers. Throws ConfigError
// for optimisers that this version does not have: adam and sgd.
[[nodiscard]] Optimizer build_optimizer(const OptimizerConfig& config, const std::vector<NamedParameter>& parameters,
                                        std::uint64_t seed = 0);

}  // namespace d9d
