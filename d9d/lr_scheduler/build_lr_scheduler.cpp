#include "d9d/lr_scheduler/build_lr_scheduler.h"

#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/lr_scheduler/lambda_scheduler.h"
#include "d9d/lr_scheduler/schedule_phases.h"

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
  const std::string before = index == 0 ? "the run begins" : cat(phases[index - 1].name, " ends");
  const auto share = [&](std::int64_t total) { return cat(" of ", total, " (", 100 * step / total, " %)"); };
  return cat(phases[index].name, " ends where ", before, ", at step ", step,
             total_steps && *total_steps > 0 ? share(*total_steps) : "");
}

// Whether a phase has no step in a run of any length.
bool is_always_empty(const std::vector<PhaseConfig>& configs, std::size_t index) {
  const PhaseConfig* const before = index > 0 ? &configs[index - 1] : nullptr;
  const auto* share_before = before ? std::get_if<PercentagePhaseConfig>(before) : nullptr;
  if (const auto* share = std::get_if<PercentagePhaseConfig>(&configs[index])) {
    return share->percentage <= (share_before ? share_before->percentage : 0.0);
  }
  if (!before || !std::holds_alternative<RestPhaseConfig>(configs[index])) return false;
  return std::holds_alternative<RestPhaseConfig>(*before) || (share_before && share_before->percentage >= 1.0);
}

}  // namespace

PiecewiseSchedule build_piecewise_schedule(const LRSchedulerConfig& config, std::optional<std::int64_t> total_steps) {
  const auto [piecewise, names] = schedule_phases(config, total_steps);
  PiecewiseBuilder builder(
      {.initial_multiplier = piecewise.initial_multiplier, .total_steps = total_steps, .names = names});
  for (const PhaseConfig& phase : piecewise.phases) std::visit(AddPhase{builder}, phase);
  PiecewiseSchedule schedule = builder.build();
  for (std::size_t i = 0; i < piecewise.phases.size(); ++i) {
    const bool is_share = std::holds_alternative<PercentagePhaseConfig>(piecewise.phases[i]);
    D9D_CHECK(!is_always_empty(piecewise.phases, i), ConfigError,
              "[lr_scheduler] expected each phase to have a step, got none: ",
              place_of(schedule.phases(), i, total_steps), ". ",
              is_share ? "`percentage` counts from the start of the run: raise it, or leave out the phase."
                       : "Shorten the phases before it, or leave out the phase.");
  }
  return schedule;
}

std::vector<std::string> phases_without_a_step(const PiecewiseSchedule& schedule,
                                               std::optional<std::int64_t> total_steps) {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < schedule.phases().size(); ++i) {
    const SchedulePhase& phase = schedule.phases()[i];
    if (phase.start_step == phase.end_step) found.push_back(place_of(schedule.phases(), i, total_steps));
  }
  return found;
}

LearningRateScheduler as_lr_scheduler(PiecewiseSchedule schedule) {
  return LearningRateScheduler(
      LambdaScheduler([schedule = std::move(schedule)](std::int64_t step) { return schedule.factor(step); }));
}

LearningRateScheduler build_lr_scheduler(const LRSchedulerConfig& config, std::optional<std::int64_t> total_steps) {
  return as_lr_scheduler(build_piecewise_schedule(config, total_steps));
}

}  // namespace d9d
