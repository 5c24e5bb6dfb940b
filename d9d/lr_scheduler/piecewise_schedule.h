// A multiplier of the learning rate over the steps of a run, made of consecutive phases.
//
// Example
//   const auto schedule = d9d::PiecewiseBuilder({.initial_multiplier = 0, .total_steps = 100})
//                             .for_steps(10, 1.0, d9d::LinearCurveConfig{})          // warm up
//                             .until_percentage(0.7, 1.0, d9d::LinearCurveConfig{})  // stay
//                             .fill_rest(0.001, d9d::CosineCurveConfig{})            // decay
//                             .build();
//   schedule.factor(5);  // 0.5
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/lr_scheduler/config.h"

namespace d9d {

// Covers the steps [start_step, end_step). Its end value is reached at end_step.
struct SchedulePhase {
  std::int64_t start_step = 0;
  std::int64_t end_step = 0;
  double start_value = 1;
  double end_value = 1;
  CurveConfig curve = {};
  std::string name = {};  // in messages
};

class PiecewiseSchedule {
 public:
  // The multiplier of 0-based `step`. Before the first phase it is the first value, after the last phase the last
  // value.
  [[nodiscard]] double factor(std::int64_t step) const;
  [[nodiscard]] const std::vector<SchedulePhase>& phases() const { return phases_; }

 private:
  friend class PiecewiseBuilder;
  explicit PiecewiseSchedule(std::vector<SchedulePhase> phases) : phases_(std::move(phases)) {}

  std::vector<SchedulePhase> phases_;  // at least one, each starts where the previous one ends
};

// Its corners: "0 in step 0, linear to 1 in step 10, cosine to 0.1 in step 100".
[[nodiscard]] std::string describe(const PiecewiseSchedule& schedule);

struct PiecewiseOptions {
  double initial_multiplier = 1;
  std::optional<std::int64_t> total_steps = std::nullopt;  // of the run; needed for fractions of it
  std::vector<std::string> names = {};  // of phases in messages; without: "phases.0", "phases.1", ...
};

// Each phase starts where the previous one ended, in time and value, and ends at total_steps at the latest. Violated
// rules throw ConfigError.
class PiecewiseBuilder {
 public:
  explicit PiecewiseBuilder(PiecewiseOptions options);

  // Adds a phase of `steps` > 0 steps.
  PiecewiseBuilder& for_steps(std::int64_t steps, double target_multiplier, const CurveConfig& curve);

  // Adds a phase up to the step floor(total_steps * fraction), with fraction in [0, 1]. It must not end before it
  // starts.
  PiecewiseBuilder& until_percentage(double fraction, double target_multiplier, const CurveConfig& curve);

  // Adds a phase up to total_steps.
  PiecewiseBuilder& fill_rest(double target_multiplier, const CurveConfig& curve);

  // Requires at least one phase.
  [[nodiscard]] PiecewiseSchedule build() const;

 private:
  PiecewiseBuilder& add_until(std::int64_t end_step, double target_multiplier, const CurveConfig& curve);

  std::optional<std::int64_t> total_steps_;
  std::vector<std::string> names_;
  std::int64_t end_step_ = 0;  // of the last phase
  double end_value_;           // of the last phase
  std::vector<SchedulePhase> phases_;
};

}  // namespace d9d
