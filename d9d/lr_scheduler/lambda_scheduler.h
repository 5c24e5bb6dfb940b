// A learning-rate schedule that is a function of the number of completed steps.
//
// Example
//   d9d::LambdaScheduler scheduler([&](std::int64_t step) { return schedule.factor(step); });
//   for (...) {
//     optimizer.step(base_learning_rate * scheduler.factor());
//     scheduler.step();
//   }
//
// The n-th optimiser step (from 1) uses factor(n - 1), as with torch.optim.lr_scheduler.LambdaLR. Only the position is
// saved: base rates and the schedule come from the configuration, so that a change of it takes effect when a run
// resumes.
#pragma once

#include <cstdint>
#include <functional>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

class LambdaScheduler {
 public:
  // `factor` maps the number of completed optimiser steps to a multiplier.
  explicit LambdaScheduler(std::function<double(std::int64_t)> factor);

  // The multiplier of the next optimiser step.
  [[nodiscard]] double factor() const { return factor_(num_steps_); }

  // To be called after each optimiser step.
  void step() { ++num_steps_; }

  // {"num_steps": n}
  [[nodiscard]] nlohmann::ordered_json state() const;
  // Throws StateError if `state` does not have the form that state() returns.
  void load_state(const nlohmann::ordered_json& state);

 private:
  std::function<double(std::int64_t)> factor_;
  std::int64_t num_steps_ = 0;
};

}  // namespace d9d
