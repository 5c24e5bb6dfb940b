// The memory that a rank keeps for its microbatches over the time of a simulated step.
//
// Example
//   const Simulation run = simulate(program, {.costs = costs});
//   peak_bytes(run, costs, /*rank=*/0);
//   for (const auto& [time, bytes] : memory_curve(run, costs, 0)) ...   // bytes from this time on
//
// A forward adds its stage's activation_bytes when it starts; a whole backward (B) or an input pass (I) drops them when
// it ends. An input pass then adds deferred_bytes, which the weight pass (W) drops when it ends. In a program without a
// backward, a forward keeps activation_bytes only while it runs. Parameters, gradients and messages are not counted.
#pragma once

#include <vector>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/simulator/simulate.h"

namespace d9d {

struct MemorySample {
  double time = 0;
  double bytes = 0;
};

// Returns samples in order of time, one for each time at which the number of bytes changes; none for a rank without
// computations.
[[nodiscard]] std::vector<MemorySample> memory_curve(const Simulation& run, const PipelineCosts& costs,
                                                     std::int64_t rank);

[[nodiscard]] double peak_bytes(const Simulation& run, const PipelineCosts& costs, std::int64_t rank);

}  // namespace d9d
