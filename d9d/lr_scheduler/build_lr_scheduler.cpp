#include "d9d/lr_scheduler/build_lr_scheduler.h"

#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
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

// "phases.1 ends where phases.0 ends, at step 60 of 100 (60 %)"
std::string place_of(const std::vector<SchedulePhase>& phases, std::size_t index,
                     std::optional<std::int64_t> total_steps) {
  const std::int64_t step = phases[index].end_step;
  const std::string before = index == 0 ? "the run begins" : cat("phases.", index - 1, " ends");
  const auto share = [&](std::int64_t total) { return cat(" of ", total, " (", 100 * step / total, " %)"); };
  return cat("phases.", index, " ends where ", before, ", at step ", step,
             total_steps && *total_steps > 0 ? share(*total_steps) : "");
}

// A fraction that is more than none, but cut to no step: the warm-up of a trial run of a few steps.
bool is_cut_away(const std::vector<PhaseConfig>& configs, std::size_t index, std::int64_t start_step,
                 std::optional<std::int64_t> total_steps) {
  const auto* until = std::get_if<PercentagePhaseConfig>(&configs[index]);
  if (!until || !total_steps) return false;
  const auto* before = index > 0 ? std::get_if<PercentagePhaseConfig>(&configs[index - 1]) : nullptr;
  if (before) return until->percentage > before->percentage;
  return until->percentage * static_cast<double>(*total_steps) > static_cast<double>(start_step);
}

void check_steps(const PiecewiseConfig& config, const std::vector<SchedulePhase>& phases,
                 std::optional<std::int64_t> total_steps) {
  for (std::size_t i = 0; i < phases.size(); ++i) {
    if (phases[i].end_step > phases[i].start_step || is_cut_away(config.phases, i, phases[i].start_step, total_steps)) continue;
    const bool is_share = std::holds_alternative<PercentagePhaseConfig>(config.phases[i]);
    D9D_CHECK(false, ConfigError, "[lr_scheduler] expected each phase to have a step, got none: ",
              place_of(phases, i, total_steps), ". ",
              is_share ? "`percentage` counts from the start of the run: raise it, or leave out the phase."
                       : "Shorten the phases before it, train longer, or leave out the phase.");
  }
}

}  // namespace

PiecewiseSchedule build_piecewise_schedule(const PiecewiseConfig& config, std::optional<std::int64_t> total_steps) {
  PiecewiseBuilder builder({.initial_multiplier = config.initial_multiplier, .total_steps = total_steps});
  for (const PhaseConfig& phase : config.phases) std::visit(AddPhase{builder}, phase);
  PiecewiseSchedule schedule = builder.build();
  check_steps(config, schedule.phases(), total_steps);
  return schedule;
}

LearningRateScheduler as_lr_scheduler(PiecewiseSchedule schedule) {
  return LearningRateScheduler(
      LambdaScheduler([schedule = std::move(schedule)](std::int64_t step) { return schedule.factor(step); }));
}

LearningRateScheduler build_lr_scheduler(const LRSchedulerConfig& config, std::optional<std::int64_t> total_steps) {
  return as_lr_scheduler(build_piecewise_schedule(piecewise_config(config), total_steps));
}

}  // namespace d9d
