#include "d9d/loop/language_model/auto_providers.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <ATen/core/Tensor.h>

#include "d9d/base/config/record_json.h"
#include "d9d/loop/checks/optimizer_groups.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"
#include "d9d/lr_scheduler/plot_schedule.h"
#include "d9d/optim/build_optimizer.h"

namespace d9d {
namespace {

void warn_of_rounded_steps(const Logger& log, const TrainableParameters& trainable) {
  const auto found = std::ranges::find_if(trainable.parameters, [](const NamedParameter& parameter) {
    return parameter.tensor.scalar_type() == at::kBFloat16;
  });
  if (found == trainable.parameters.end()) return;
  log.warning("the optimiser updates ", found->name, " in bfloat16, where a step below 1/256 of a value vanishes. Set ",
              "trainer.model_stage_factory.master_dtype to float32, or optimizer.name to stochastic_adamw");
}

}  // namespace

Optimizer AutoOptimizerProvider::build_optimizer(const DistContext& context, const TrainableParameters& trainable) {
  if (context.is_main_process() && !std::holds_alternative<StochasticAdamWConfig>(config_)) {
    warn_of_rounded_steps(context.log(), trainable);
  }
  check_groups(context, groups_of(config_), trainable.parameters);
  return d9d::build_optimizer(config_, trainable.parameters, trainable.base_seed);
}

nlohmann::json AutoOptimizerProvider::dump_hparams() const { return write_record(config_); }

LearningRateScheduler AutoLRSchedulerProvider::build_scheduler(const DistContext& context, std::int64_t total_steps) {
  PiecewiseSchedule schedule = build_piecewise_schedule(config_, total_steps);
  if (context.is_main_process()) {
    context.log().info("learning rate, times the optimiser's: ", describe(schedule));
    for (const std::string& phase : phases_without_a_step(schedule, total_steps)) {
      context.log().warning("learning rate: a phase has no step in this run: ", phase);
    }
  }
  return as_lr_scheduler(std::move(schedule));
}

std::optional<std::string> AutoLRSchedulerProvider::draw(double learning_rate, std::int64_t total_steps) const {
  if (total_steps < 1) return std::nullopt;
  return plot_svg({.title = "learning rate",
                   .schedule = build_piecewise_schedule(config_, total_steps),
                   .num_steps = total_steps,
                   .learning_rate = learning_rate});
}

nlohmann::json AutoLRSchedulerProvider::dump_hparams() const { return write_record(config_); }

}  // namespace d9d
