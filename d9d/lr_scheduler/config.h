// The learning-rate schedule in JSON: a piecewise curve of multipliers of the optimiser's learning rate.
//
// Example
//   {"name": "piecewise", "scheduler": {"initial_multiplier": 0.0, "phases": [
//     {"mode": "percentage", "percentage": 0.1, "target_multiplier": 1.0, "curve": {"type": "linear"}},
//     {"mode": "rest", "target_multiplier": 0.1, "curve": {"type": "cosine"}}]}}
// The object under "scheduler" is also accepted on its own.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "d9d/base/record.h"

namespace d9d {

struct LinearCurveConfig {
  static constexpr Tag kTag = {"type", "linear"};
  static constexpr auto fields() { return record<LinearCurveConfig>(); }
};
struct CosineCurveConfig {
  static constexpr Tag kTag = {"type", "cosine"};
  static constexpr auto fields() { return record<CosineCurveConfig>(); }
};
struct ExponentialCurveConfig {
  static constexpr Tag kTag = {"type", "exponential"};
  static constexpr auto fields() { return record<ExponentialCurveConfig>(); }
};
struct PolyCurveConfig {
  double power = 2.0;  // of the share of the phase that is over: 1 is a straight line

  static constexpr Tag kTag = {"type", "poly"};
  static constexpr auto fields() { return record<PolyCurveConfig>(defaulted("power", &PolyCurveConfig::power)); }
};
using CurveConfig = std::variant<LinearCurveConfig, CosineCurveConfig, ExponentialCurveConfig, PolyCurveConfig>;

// The multiplier of a phase goes from the end value of the previous phase to its target.
struct StepsPhaseConfig {          // lasts a number of steps
  std::int64_t steps = 1;          // how many it lasts
  double target_multiplier = 1.0;  // at its end
  CurveConfig curve = {};          // from the multiplier before to its target

  static constexpr Tag kTag = {"mode", "steps"};
  static constexpr auto fields() {
    using Phase = StepsPhaseConfig;
    return record<Phase>(required("steps", &Phase::steps, at_least(1)),
                         required("target_multiplier", &Phase::target_multiplier, at_least(0)),
                         required("curve", &Phase::curve));
  }
};
// Lasts until a fraction of all steps, counted from the start of the run: after 0.1, another phase to 0.5 has 40 % of
// the steps.
struct PercentagePhaseConfig {
  double percentage = 1.0;         // where it ends, in [0, 1]
  double target_multiplier = 1.0;  // at its end
  CurveConfig curve = {};          // from the multiplier before to its target

  static constexpr Tag kTag = {"mode", "percentage"};
  static constexpr auto fields() {
    using Phase = PercentagePhaseConfig;
    return record<Phase>(required("percentage", &Phase::percentage, between(0, 1)),
                         required("target_multiplier", &Phase::target_multiplier, at_least(0)),
                         required("curve", &Phase::curve));
  }
};
struct RestPhaseConfig {           // lasts until the end of the run
  double target_multiplier = 1.0;  // at its end
  CurveConfig curve = {};          // from the multiplier before to its target

  static constexpr Tag kTag = {"mode", "rest"};
  static constexpr auto fields() {
    using Phase = RestPhaseConfig;
    return record<Phase>(required("target_multiplier", &Phase::target_multiplier, at_least(0)),
                         required("curve", &Phase::curve));
  }
};
using PhaseConfig = std::variant<StepsPhaseConfig, PercentagePhaseConfig, RestPhaseConfig>;

struct PiecewiseConfig {
  double initial_multiplier = 1.0;       // at the start
  std::vector<PhaseConfig> phases = {};  // one after the other

  static constexpr auto fields() {
    return record<PiecewiseConfig>(required("initial_multiplier", &PiecewiseConfig::initial_multiplier, at_least(0)),
                                   required("phases", &PiecewiseConfig::phases));
  }
};

struct PiecewiseSchedulerConfig {
  PiecewiseConfig scheduler = {};  // the curve

  static constexpr Tag kTag = {"name", "piecewise"};
  static constexpr auto fields() {
    return record<PiecewiseSchedulerConfig>(required("scheduler", &PiecewiseSchedulerConfig::scheduler));
  }
};

// The second alternative is the form without "name".
using LRSchedulerConfig = std::variant<PiecewiseSchedulerConfig, PiecewiseConfig>;

// The piecewise configuration of either form.
[[nodiscard]] inline const PiecewiseConfig& piecewise_config(const LRSchedulerConfig& config) {
  if (const auto* named = std::get_if<PiecewiseSchedulerConfig>(&config)) return named->scheduler;
  return std::get<PiecewiseConfig>(config);
}

extern template const ValueType& json_type<LRSchedulerConfig>();

}  // namespace d9d
