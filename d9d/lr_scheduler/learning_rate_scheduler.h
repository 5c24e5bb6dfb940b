// Where a run is on its learning-rate schedule. The learning rate of a group is its base rate times factor().
//
// Example
//   d9d::LearningRateScheduler scheduler([&](std::int64_t step) { return schedule.factor(step); });
//   for (...) {
//     optimizer.step(base_learning_rate * scheduler.factor());
//     scheduler.step();
//   }
//
// The n-th optimiser step (from 1) uses factor(n - 1), as with torch.optim.lr_scheduler.LambdaLR. Only the position is
// state: base rates and the schedule come from the configuration, and an edit of it counts from the resume on.
#pragma once

#include <cstdint>
#include <functional>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

class LearningRateScheduler {
 public:
  // `factor` maps the number of completed optimiser steps to a multiplier.
  explicit LearningRateScheduler(std::function<double(std::int64_t)> factor);

  // The multiplier of the optimiser step that comes next.
  [[nodiscard]] double factor() const { return factor_(num_steps_); }

  // Call after each optimiser step.
  void step() { ++num_steps_; }

  // {"num_steps": n}
  [[nodiscard]] nlohmann::ordered_json state() const;
  // StateError when it is no such state.
  void load_state(const nlohmann::ordered_json& state);

 private:
  std::function<double(std::int64_t)> factor_;
  std::int64_t num_steps_ = 0;
};

}  // namespace d9d
