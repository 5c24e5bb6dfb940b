#include "d9d/loop/auto/auto_providers.h"

#include "d9d/loop/config/unsupported.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"
#include "d9d/optim/build_optimizer.h"

namespace d9d {

AutoOptimizerProvider::AutoOptimizerProvider(OptimizerConfig config) : config_(std::move(config)) {
  refuse_unsupported(config_);
}

Optimizer AutoOptimizerProvider::build_optimizer(const DistContext& /*context*/, const TrainableParameters& trainable) {
  return d9d::build_optimizer(config_, trainable.parameters, trainable.base_seed);
}

LearningRateScheduler AutoLRSchedulerProvider::build_scheduler(const DistContext& /*context*/,
                                                               std::int64_t total_steps) {
  return build_lr_scheduler(config_, total_steps);
}

}  // namespace d9d
