#include "d9d/loop/auto/auto_providers.h"

#include "d9d/loop/config/unsupported.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"
#include "d9d/optim/build_optimizer.h"

namespace d9d {

AutoOptimizerProvider::AutoOptimizerProvider(OptimizerConfig config) : config_(std::move(config)) {
  refuse_unsupported(config_);
}

Optimizer AutoOptimizerProvider::build_optimizer(const DistContext& /*context*/, Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter->requires_grad()) continue;
    parameters.push_back({.name = name,
                          .tensor = parameter->stored(),
                          .rows = element_rows(parameter->global_shape(), parameter->mesh(), parameter->placements())});
  }
  return d9d::build_optimizer(config_, parameters, module.random_clock()->base_seed);
}

LearningRateScheduler AutoLRSchedulerProvider::build_scheduler(const DistContext& /*context*/,
                                                               std::int64_t total_steps) {
  return build_lr_scheduler(config_, total_steps);
}

}  // namespace d9d
