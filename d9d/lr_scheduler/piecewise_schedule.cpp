#include "d9d/lr_scheduler/piecewise_schedule.h"

#include <utility>
#include <variant>

#include "d9d/base/check.h"
#include "d9d/lr_scheduler/curve.h"

namespace d9d {

double PiecewiseSchedule::factor(std::int64_t step) const {
  if (step < 0) return phases_.front().start_value;
  for (const SchedulePhase& phase : phases_) {
    if (step < phase.start_step || step >= phase.end_step) continue;
    const double progress =
        static_cast<double>(step - phase.start_step) / static_cast<double>(phase.end_step - phase.start_step);
    return interpolate(phase.curve, phase.start_value, phase.end_value, progress);
  }
  return phases_.back().end_value;
}

std::string describe(const PiecewiseSchedule& schedule) {
  const std::vector<SchedulePhase>& phases = schedule.phases();
  std::string text = cat(phases.front().start_value, " in step ", phases.front().start_step);
  for (const SchedulePhase& phase : phases) {
    text += cat(", ", name_of(phase.curve), " to ", phase.end_value, " in step ", phase.end_step);
  }
  return text;
}

PiecewiseBuilder::PiecewiseBuilder(PiecewiseOptions options)
    : total_steps_(options.total_steps), names_(std::move(options.names)), end_value_(options.initial_multiplier) {}

PiecewiseBuilder& PiecewiseBuilder::for_steps(std::int64_t steps, double target_multiplier, const CurveConfig& curve) {
  D9D_CHECK(steps > 0, ConfigError, "[lr_scheduler::for_steps] expected steps > 0, got ", steps,
            ". Leave out the phase.");
  return add_until(end_step_ + steps, target_multiplier, curve);
}

PiecewiseBuilder& PiecewiseBuilder::until_percentage(double fraction, double target_multiplier,
                                                     const CurveConfig& curve) {
  D9D_CHECK(total_steps_.has_value(), ConfigError,
            "[lr_scheduler::until_percentage] expected total_steps, of which a phase takes a fraction, got none. Set "
            "total_steps or use phases of steps.");
  D9D_CHECK(fraction >= 0 && fraction <= 1, ConfigError,
            "[lr_scheduler::until_percentage] expected percentage in the range [0, 1], got ", fraction,
            ". Write 0.1 for 10 %.");
  // The product is a double: 100 * 0.29 is 28.999999999999996, which gives 28 steps, as in d9d for Python.
  const auto end_step = static_cast<std::int64_t>(static_cast<double>(*total_steps_) * fraction);
  return add_until(end_step, target_multiplier, curve);
}

PiecewiseBuilder& PiecewiseBuilder::fill_rest(double target_multiplier, const CurveConfig& curve) {
  return until_percentage(1, target_multiplier, curve);
}

PiecewiseBuilder& PiecewiseBuilder::add_until(std::int64_t end_step, double target_multiplier,
                                              const CurveConfig& curve) {
  const std::string name = phases_.size() < names_.size() ? names_[phases_.size()] : cat("phases.", phases_.size());
  D9D_CHECK(
      end_step >= end_step_, ConfigError, "[lr_scheduler] expected ", name, " to end at or after step ", end_step_,
      ", where the previous one ends, got step ", end_step,
      total_steps_ ? cat(" of total_steps = ", *total_steps_) : "",
      ". Lengthen it, shorten those before it, or raise total_steps. A percentage counts from the start of the run.");
  D9D_CHECK(!total_steps_ || end_step <= *total_steps_, ConfigError, "[lr_scheduler] expected ", name,
            " to end within the run of total_steps = ", total_steps_.value_or(0), ", got step ", end_step,
            ". Shorten it or those before it, or train longer.");
  if (const auto* poly = std::get_if<PolyCurveConfig>(&curve)) {
    D9D_CHECK(poly->power > 0, ConfigError, "[lr_scheduler] expected power > 0 of the poly curve of ", name, ", got ",
              poly->power, ". Use 1 for a straight line.");
  }
  if (std::holds_alternative<InverseSqrtCurveConfig>(curve)) {
    D9D_CHECK(end_value_ > 0 && target_multiplier > 0, ConfigError,
              "[lr_scheduler] expected multipliers > 0 at both ends of the inverse_sqrt curve of ", name, ", got ",
              end_value_, " and ", target_multiplier, ". It never reaches 0.");
  }
  phases_.push_back({.start_step = end_step_,
                     .end_step = end_step,
                     .start_value = end_value_,
                     .end_value = target_multiplier,
                     .curve = curve,
                     .name = name});
  end_step_ = end_step;
  end_value_ = target_multiplier;
  return *this;
}

PiecewiseSchedule PiecewiseBuilder::build() const {
  D9D_CHECK(!phases_.empty(), ConfigError,
            "[lr_scheduler::build] expected at least one phase, got none. A constant is one phase to the same value.");
  return PiecewiseSchedule(phases_);
}

}  // namespace d9d
