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
// and for a phase that would have no step in a run of any length, which is probably a mistake: `percentage` counts from
// the start of the run.
[[nodiscard]] PiecewiseSchedule build_piecewise_schedule(const LRSchedulerConfig& config,
                                                         std::optional<std::int64_t> total_steps);
// Descriptions of the phases that have no step in this run: "phases.1 ends where phases.0 ends, at step 2 of 2 (100
// %)".
[[nodiscard]] std::vector<std::string> phases_without_a_step(const PiecewiseSchedule& schedule,
                                                             std::optional<std::int64_t> total_steps);
[[nodiscard]] LearningRateScheduler as_lr_scheduler(PiecewiseSchedule schedule);
[[nodiscard]] LearningRateScheduler build_lr_scheduler(const LRSchedulerConfig& config,
                                                       std::optional<std::int64_t> total_steps);

}  // namespace d9d
