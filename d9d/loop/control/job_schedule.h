// How many optimiser steps a job has, how many are done, and whether a periodic action is due.
//
// Example
//   d9d::JobSchedule schedule(d9d::total_steps_of(config.schedule.total_steps, stream.num_steps()));
//   while (!schedule.is_done()) {
//     train_one_step();
//     if (schedule.should_do_action(config.logging.period_steps, {.always_at_last_step = true})) log();
//     schedule.advance();
//     const auto& period = config.checkpointing.period_steps;
//     if (schedule.should_do_action(period, {.always_at_last_step = true, .after_advance = true})) save();
//   }
#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "d9d/loop/config/step_action_period.h"

namespace d9d {

// The steps of a job: `configured` if set, else what the data has (`available`). ConfigError when neither is known, or
// the data has fewer than configured.
[[nodiscard]] std::int64_t total_steps_of(std::optional<std::int64_t> configured,
                                          std::optional<std::int64_t> available);

struct StepActionRules {
  bool always_at_last_step = false;  // a period that does not divide the total still acts at the last step
  bool after_advance = false;        // asked after advance() instead of before it
};

class JobSchedule {
 public:
  // ConfigError unless total_steps > 0.
  explicit JobSchedule(std::int64_t total_steps);

  [[nodiscard]] std::int64_t total_steps() const { return total_steps_; }
  // Number of completed steps, which is the 0-based index of the step that runs now.
  // Throws ConfigError where a CUDA graph would keep the answer.
  [[nodiscard]] std::int64_t current_step() const;
  [[nodiscard]] bool is_done() const { return current_step_ >= total_steps_; }

  // One more step is complete.
  void advance() { ++current_step_; }

  // Whether an action of this period belongs to the step that runs now (or, after advance(), to the one that ended).
  // Steps count from 1: a period of 5 acts at the 5th, 10th, ... step.
  [[nodiscard]] bool should_do_action(const StepActionPeriod& period, const StepActionRules& rules = {}) const;

  // The same job for work that a CUDA graph captures: which step runs must not be asked.
  [[nodiscard]] JobSchedule without_step() const;

  // {"current_step": n}: a resumed job may have another total.
  [[nodiscard]] nlohmann::ordered_json state() const;
  // StateError when it is no such state.
  void load_state(const nlohmann::ordered_json& state);

 private:
  std::int64_t total_steps_;
  std::int64_t current_step_ = 0;
  bool has_step_ = true;
};

}  // namespace d9d
