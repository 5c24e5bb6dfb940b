#include "d9d/loop/task/trainable_parameters.h"

namespace d9d {

TrainableParameters trainable_parameters(const Module& module) {
  TrainableParameters trainable{.parameters = {}, .base_seed = module.random_clock()->base_seed};
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter->requires_grad()) continue;
    const std::vector<std::int64_t>& shape = parameter->global_shape();
    trainable.parameters.push_back({.name = name,
                                    .tensor = parameter->stored(),
                                    .rows = element_rows(shape, parameter->mesh(), parameter->placements()),
                                    .global_shape = shape,
                                    .mesh = parameter->mesh(),
                                    .placements = parameter->placements(),
                                    .role = parameter->role()});
  }
  return trainable;
}

}  // namespace d9d
