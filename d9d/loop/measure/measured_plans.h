// Measures what the units of a rank's stages cost with each of their plans for activations.
//
// Example
//   MeasuredSplit split(job, placement);                                  // built
//   split.run_first_microbatch([&](const MeasuredSplit::Running& running) {
//     const MeasuredPlans plans = measure_plans(job, split, running, moments, {.is_split = false}, num_microbatches);
//     const ActivationPlanChoice choice = choose_activation_plans(plans.request);
//   });
//
// A pass of the first microbatch runs with all units on their most frugal plan. Then, for each other plan, some units
// of a kind follow it, as many as certainly fit into the memory that is free, while the others stay frugal: the
// difference is what such a unit costs. Seconds are those of whole passes, in which copies to the host overlap with
// other units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/loop/measure/activation_units.h"
#include "d9d/loop/measure/choose_activation_plans.h"
#include "d9d/loop/measure/measured_split.h"
#include "d9d/pipelining/program/live_microbatches.h"

namespace d9d {

// What a rank keeps at the times at which that could be most: waiting_microbatches() of the program without the actions
// during which it keeps no more of any stage than during another. At least one.
using KeptMoments = std::vector<std::vector<WaitingMicrobatches>>;
[[nodiscard]] KeptMoments greatest_moments(const PipelineProgram& program, std::int64_t rank);

struct MeasuredPlans {
  ActivationPlanRequest request = {};  // kinds are those of all stages of the rank, one stage after the other
  std::vector<std::vector<AlikeUnits>> units = {};  // by stage; with the kinds of `request` in their order
  double room_bytes = 0;         // that a pass may take beside parameters and gradients, on the rank with the least
  bool makes_gradients = false;  // backward makes the gradients of autograd: none are beside a step's forward
};

// Collective over the ranks that have the same stages as this one; called by the work of
// MeasuredSplit::run_first_microbatch(). Returns the same on these ranks, the largest of what they measure, with units
// of `split`, which it borrows. num_microbatches: of a step.
[[nodiscard]] MeasuredPlans measure_plans(const UnbuiltJob& job, MeasuredSplit& split,
                                          const MeasuredSplit::Running& running, const KeptMoments& moments,
                                          const PassKind& pass, std::int64_t num_microbatches);

// Collective over the ranks that have the same stages, of a job with one stage; called as measure_plans(). Runs a pass
// with the plans that the units have. Returns the most device bytes that a step takes with them, the same on these
// ranks.
[[nodiscard]] double bytes_of_step(const UnbuiltJob& job, MeasuredSplit& split, const MeasuredSplit::Running& running,
                                   const PassKind& pass, const MeasuredPlans& measured);

}  // namespace d9d
