// The parameters that an optimiser is built on.
//
// Example
//   const TrainableParameters trainable = trainable_parameters(*model);
//   Optimizer optimizer(MyOptimizer(trainable.parameters, /*learning_rate=*/1e-3));
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/modules/module.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d {

struct TrainableParameters {
  std::vector<NamedParameter> parameters;  // in the order of registration
  std::uint64_t base_seed = 0;             // seed of the job, for optimisers that draw random numbers
};

// Returns the parameters of a module that require gradients, each as the tensor that this rank keeps; its .grad() is
// the gradient to apply. The module must have storage, layouts and a random clock. Local.
[[nodiscard]] TrainableParameters trainable_parameters(const Module& module);

}  // namespace d9d
