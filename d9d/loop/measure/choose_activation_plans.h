// Chooses how the units of a rank's stages treat their activations, so that a step takes the least time within given
// bytes of the device and of the host.
//
// Example
//   const UnitKind layers{.num_units = 28, .num_live = 1,
//                         .plans = {{.plan = {Recompute::kNothing}, .seconds = 0.010, .device_bytes = 9e9},
//                                   {.plan = {Recompute::kAll}, .seconds = 0.013, .device_bytes = 1e9}}};
//   const auto choice = choose_activation_plans({.kinds = {layers}, .resident_bytes = 20e9, .device_bytes = 120e9});
//   choice.num_units[0];                         // of the 28 layers, how many follow each of the two plans: {9, 19}
//
// Units of a kind are interchangeable. No other choice within these bytes takes 0.1 % less time. Where there are too
// many to try all, it is the best that changes of one and two units lead to.
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/modules/activation_plan.h"

namespace d9d {

// What one unit costs that follows a plan.
struct PlanCosts {
  ActivationPlan plan = {};
  double seconds = 0;        // of the forward and the backward of a microbatch
  double device_bytes = 0;   // kept for a microbatch from its forward to its backward, on the device
  double host_bytes = 0;     // the same in host memory
  double working_bytes = 0;  // of the stage while such a unit computes, beside what all units keep
};

// Units that cost the same.
struct UnitKind {
  std::int64_t num_units = 0;
  std::vector<std::int64_t> num_live = {1};  // at each moment, microbatches whose activations the units' stage keeps
  std::vector<PlanCosts> plans = {};
};

struct ActivationPlanRequest {
  std::vector<UnitKind> kinds = {};
  double resident_bytes = 0;  // what the rank keeps on its device all the time, such as parameters
  // What it keeps beside that and what units keep, at each moment of a step that limits what units may keep.
  std::vector<double> moment_bytes = {0};
  // Those of resident_bytes that exist only where units keep nothing any more: backward makes the gradients of a unit
  // when it has freed what later units keep. Units that keep less come first, so the most is taken before the backward
  // of the last unit, or in that of the first.
  double late_bytes = 0;
  double device_bytes = 0;  // most that all that, what units keep, and the work of one of them may take at a moment
  double host_bytes = 0;    // most that units may keep in host memory at a moment
};

struct ActivationPlanChoice {
  std::vector<std::vector<std::int64_t>> num_units = {};  // by kind and plan of the request
  double seconds = 0;                                     // of all units, for one microbatch
  double device_bytes = 0;                                // most that is taken, in the sense of the request
  double host_bytes = 0;
};

// Throws ConfigError if no choice fits, which says how many bytes would do.
[[nodiscard]] ActivationPlanChoice choose_activation_plans(const ActivationPlanRequest& request);

}  // namespace d9d
