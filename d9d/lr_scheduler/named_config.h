// Learning-rate schedules by name, in JSON. The multiplier rises from 0 in step 0 to 1 over the steps of a warm-up, if
// there is one, and then follows the named curve to the end of the run.
//
// Example
//   {"name": "cosine", "warmup_steps": 2000, "min_ratio": 0.1}
//   {"name": "wsd", "warmup_share": 0.01, "decay_share": 0.2}
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/base/record.h"
#include "d9d/lr_scheduler/curve_config.h"

namespace d9d {

// The steps in which the multiplier rises from 0 to 1.
struct WarmupConfig {
  std::int64_t steps = 0;                      // that the rise takes
  std::optional<double> share = std::nullopt;  // of all steps, in place of warmup_steps

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Warmup = WarmupConfig;
    return record<Warmup>(defaulted("warmup_steps", &Warmup::steps, at_least(0)),
                          defaulted("warmup_share", &Warmup::share, between(0, 1)));
  }
};

struct ConstantScheduleConfig {  // Stays at 1.
  WarmupConfig warmup = {};

  static constexpr Tag kTag = {"name", "constant"};
  static constexpr auto fields() {
    using Schedule = ConstantScheduleConfig;
    return record<Schedule>(flattened(&Schedule::warmup));
  }
};
struct LinearScheduleConfig {  // Falls along a line.
  WarmupConfig warmup = {};
  double min_ratio = 0.0;  // the multiplier at the end

  static constexpr Tag kTag = {"name", "linear"};
  static constexpr auto fields() {
    using Schedule = LinearScheduleConfig;
    return record<Schedule>(flattened(&Schedule::warmup), defaulted("min_ratio", &Schedule::min_ratio, between(0, 1)));
  }
};
struct CosineScheduleConfig {  // Falls along half a cosine.
  WarmupConfig warmup = {};
  double min_ratio = 0.0;  // the multiplier at the end

  static constexpr Tag kTag = {"name", "cosine"};
  static constexpr auto fields() {
    using Schedule = CosineScheduleConfig;
    return record<Schedule>(flattened(&Schedule::warmup), defaulted("min_ratio", &Schedule::min_ratio, between(0, 1)));
  }
};
struct WsdScheduleConfig {  // Warm-up, stable, decay: stays at 1 and falls at the end.
  WarmupConfig warmup = {};
  std::optional<std::int64_t> decay_steps = std::nullopt;  // that the fall takes
  std::optional<double> decay_share = std::nullopt;        // of all steps, in place of decay_steps; 0.1 without both
  CurveConfig decay_curve = LinearCurveConfig{};           // of the fall; poly with the power 0.5: 1 - sqrt
  double min_ratio = 0.0;                                  // the multiplier at the end

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "wsd"};
  static constexpr auto fields() {
    using Schedule = WsdScheduleConfig;
    return record<Schedule>(flattened(&Schedule::warmup), defaulted("decay_steps", &Schedule::decay_steps, at_least(1)),
                            defaulted("decay_share", &Schedule::decay_share, between(0, 1)),
                            defaulted("decay_curve", &Schedule::decay_curve),
                            defaulted("min_ratio", &Schedule::min_ratio, between(0, 1)));
  }
};
// Falls with the root of the steps: n steps after the warm-up the multiplier is 1 / sqrt(1 + n / timescale).
struct InverseSqrtScheduleConfig {
  WarmupConfig warmup = {};
  std::optional<std::int64_t> timescale = std::nullopt;  // steps, see above; null: those of the warm-up

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "inverse_sqrt"};
  static constexpr auto fields() {
    using Schedule = InverseSqrtScheduleConfig;
    return record<Schedule>(flattened(&Schedule::warmup), defaulted("timescale", &Schedule::timescale, at_least(1)));
  }
};

}  // namespace d9d
