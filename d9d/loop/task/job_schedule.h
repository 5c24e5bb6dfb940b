// Counts the optimiser steps of a job, and says whether a periodic action is due.
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
#include <limits>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "d9d/loop/config/step_action_period.h"

namespace d9d {

// Returns the number of steps of a job: `configured` if set, else what the data provides (`available`). Throws
// ConfigError if neither is known, or if the data provides fewer than configured.
[[nodiscard]] std::int64_t total_steps_of(std::optional<std::int64_t> configured,
                                          std::optional<std::int64_t> available);

struct StepActionRules {
  bool always_at_last_step = false;  // also act at the last step if the period does not divide the total
  bool after_advance = false;        // the call comes after advance() instead of before it
};

class JobSchedule {
 public:
  // The total of a job that ends with its data, whose length is not known.
  static constexpr std::int64_t kUnknownTotal = std::numeric_limits<std::int64_t>::max();

  // Throws ConfigError unless total_steps > 0.
  explicit JobSchedule(std::int64_t total_steps);

  [[nodiscard]] std::int64_t total_steps() const { return total_steps_; }
  [[nodiscard]] bool knows_total() const { return total_steps_ != kUnknownTotal; }
  // Number of completed steps, which is the 0-based index of the current step. Throws ConfigError during the capture of
  // a CUDA graph, which would freeze the value.
  [[nodiscard]] std::int64_t current_step() const;
  [[nodiscard]] bool is_done() const { return current_step_ >= total_steps_; }

  // Marks one more step as complete.
  void advance() { ++current_step_; }

  // Returns whether an action with this period is due in the current step (or, after advance(), in the one that just
  // ended). Steps count from 1: a period of 5 acts at the 5th, 10th, ... step.
  [[nodiscard]] bool should_do_action(const StepActionPeriod& period, const StepActionRules& rules = {}) const;

  // Returns a copy whose current_step() throws ConfigError, for code that a CUDA graph captures.
  [[nodiscard]] JobSchedule without_step() const;

  // Returns {"current_step": n}. The total is left out, because a resumed job may have another one.
  [[nodiscard]] nlohmann::ordered_json state() const;
  // Throws StateError if `state` does not have the form that state() returns, ConfigError if its step is greater than
  // total_steps().
  void load_state(const nlohmann::ordered_json& state);

 private:
  std::int64_t total_steps_;
  std::int64_t current_step_ = 0;
  bool has_step_ = true;
};

}  // namespace d9d
