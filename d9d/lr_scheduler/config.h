// The learning-rate schedule in JSON: a curve of multipliers of the optimiser's learning rate, by the name of the curve
// or phase by phase.
//
// Example
//   {"name": "cosine", "warmup_steps": 2000, "min_ratio": 0.1}
//   {"name": "piecewise", "scheduler": {"initial_multiplier": 0.0, "phases": [
//     {"mode": "percentage", "percentage": 0.1, "target_multiplier": 1.0, "curve": {"type": "linear"}},
//     {"mode": "rest", "target_multiplier": 0.1, "curve": {"type": "cosine"}}]}}
// The object under "scheduler" is also accepted on its own.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "d9d/base/record.h"
#include "d9d/lr_scheduler/curve_config.h"
#include "d9d/lr_scheduler/named_config.h"

namespace d9d {

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

// PiecewiseConfig is the form without "name".
using LRSchedulerConfig =
    std::variant<PiecewiseSchedulerConfig, PiecewiseConfig, ConstantScheduleConfig, LinearScheduleConfig,
                 CosineScheduleConfig, WsdScheduleConfig, InverseSqrtScheduleConfig>;

extern template const ValueType& json_type<LRSchedulerConfig>();

}  // namespace d9d
