#include "d9d/lr_scheduler/build_lr_scheduler.h"

#include <utility>

#include "d9d/lr_scheduler/lambda_scheduler.h"

namespace d9d {
namespace {

struct AddPhase {
  PiecewiseBuilder& builder;

  void operator()(const StepsPhaseConfig& phase) const {
    builder.for_steps(phase.steps, phase.target_multiplier, phase.curve);
  }
  void operator()(const PercentagePhaseConfig& phase) const {
    builder.until_percentage(phase.percentage, phase.target_multiplier, phase.curve);
  }
  void operator()(const RestPhaseConfig& phase) const { builder.fill_rest(phase.target_multiplier, phase.curve); }
};

}  // namespace

PiecewiseSchedule build_piecewise_schedule(const PiecewiseConfig& config, std::optional<std::int64_t> total_steps) {
  PiecewiseBuilder builder({.initial_multiplier = config.initial_multiplier, .total_steps = total_steps});
  for (const PhaseConfig& phase : config.phases) std::visit(AddPhase{builder}, phase);
  return builder.build();
}

LearningRateScheduler build_lr_scheduler(const LRSchedulerConfig& config, std::optional<std::int64_t> total_steps) {
  PiecewiseSchedule schedule = build_piecewise_schedule(piecewise_config(config), total_steps);
  return LearningRateScheduler(
      LambdaScheduler([schedule = std::move(schedule)](std::int64_t step) { return schedule.factor(step); }));
}

}  // namespace d9d
