// Builds the learning-rate schedule of a configuration.
//
// Example
//   auto scheduler = d9d::build_lr_scheduler(config, job_schedule.total_steps());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "d9d/lr_scheduler/config.h"
#include "d9d/lr_scheduler/learning_rate_scheduler.h"
#include "d9d/lr_scheduler/piecewise_schedule.h"

namespace d9d {

// Both throw ConfigError if phases do not fit one another or `total_steps`, the number of optimiser steps of the run,
// and for a phase that has no step in a run of any length, which shows that it was meant otherwise: `percentage` counts
// from the start.
[[nodiscard]] PiecewiseSchedule build_piecewise_schedule(const PiecewiseConfig& config,
                                                         std::optional<std::int64_t> total_steps);
// Those that have no step in this run: "phases.1 ends where phases.0 ends, at step 2 of 2 (100 %)".
[[nodiscard]] std::vector<std::string> phases_without_a_step(const PiecewiseSchedule& schedule,
                                                             std::optional<std::int64_t> total_steps);
[[nodiscard]] LearningRateScheduler as_lr_scheduler(PiecewiseSchedule schedule);
[[nodiscard]] LearningRateScheduler build_lr_scheduler(const LRSchedulerConfig& config,
                                                       std::optional<std::int64_t> total_steps);

}  // namespace d9d
