// The phases of a schedule in a run of a given length: those of its configuration, or those that its name stands for.
//
// Example
//   schedule_phases(CosineScheduleConfig{.warmup = {.steps = 10}}, 100).names;   // {"the warm-up", "the decay"}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "d9d/lr_scheduler/config.h"

namespace d9d {

struct SchedulePhases {
  PiecewiseConfig piecewise;
  std::vector<std::string> names;  // of the phases in messages: "phases.0", or what it is of a named schedule
};

// total_steps: of the run. Throws ConfigError if the schedule needs it and it is not given, or if the phases that a
// name stands for do not fit into it.
[[nodiscard]] SchedulePhases schedule_phases(const LRSchedulerConfig& config, std::optional<std::int64_t> total_steps);

}  // namespace d9d
