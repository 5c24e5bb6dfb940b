// Optimiser and learning-rate providers that follow a configuration record, which is what most jobs need.
#pragma once

#include "d9d/loop/task/providers.h"
#include "d9d/lr_scheduler/config.h"
#include "d9d/optim/config.h"

namespace d9d {

// Builds the optimiser that {"name": ...} selects, over all trainable parameters of the module. The main process logs
// how many parameters each group has (checks/optimizer_groups.h), and warns of parameters that are kept in bfloat16 and
// rounded to the nearest value, where small steps vanish.
class AutoOptimizerProvider : public OptimizerProvider {
 public:
  explicit AutoOptimizerProvider(OptimizerConfig config) : config_(std::move(config)) {}
  // Collective over the ranks of a pipeline. Throws ConfigError for groups without parameters.
  [[nodiscard]] Optimizer build_optimizer(const DistContext& context, const TrainableParameters& trainable) override;
  [[nodiscard]] nlohmann::json dump_hparams() const override;

 private:
  OptimizerConfig config_;
};

// Builds the schedule of a configuration. The main process logs the phases of the schedule, and warns of phases without
// a step.
class AutoLRSchedulerProvider : public LearningRateSchedulerProvider {
 public:
  explicit AutoLRSchedulerProvider(LRSchedulerConfig config) : config_(std::move(config)) {}
  [[nodiscard]] LearningRateScheduler build_scheduler(const DistContext& context, std::int64_t total_steps) override;
  [[nodiscard]] nlohmann::json dump_hparams() const override;
  [[nodiscard]] std::optional<std::string> draw(double learning_rate, std::int64_t total_steps) const override;

 private:
  LRSchedulerConfig config_;
};

}  // namespace d9d
