// From a configuration to an optimiser.
//
// Example
//   Optimizer optimizer = build_optimizer(config.optimizer, {{"weight", weight}});
#pragma once

#include <vector>

#include "d9d/optim/config.h"
#include "d9d/optim/optimizer.h"

namespace d9d {

// One group of all `parameters`. Throws ConfigError for optimisers that this version does not have: adam, sgd and
// stochastic_adamw.
[[nodiscard]] Optimizer build_optimizer(const OptimizerConfig& config, const std::vector<NamedParameter>& parameters);

}  // namespace d9d
