// A recorded step as the simulator gives a simulated one, and what each of them consists of.
//
// Example
//   const StepParts measured = parts_of(program, recorded_step(program, gathered));
//   measured.waits - parts_of(program, simulation).waits;         // longer than simulated, seconds
#pragma once

#include <array>

#include <nlohmann/json.hpp>

#include "d9d/pipelining/program/pipeline_program.h"
#include "d9d/pipelining/simulator/simulate.h"

#include "benchmarks/pipelining/equal_stage.h"

namespace benchmarks {

// For gathering: {"0F3": [begin, end], ...}, seconds since the step began. The host waits for the device.
[[nodiscard]] nlohmann::json spans_of(const RecordedStep& step);

// of_ranks: spans_of() a step, by rank; all ranks began it at the same time. Without messages.
[[nodiscard]] d9d::Simulation recorded_step(const d9d::PipelineProgram& program,
                                            const std::vector<nlohmann::json>& of_ranks);

// Seconds, means over the ranks. Together they are the makespan.
struct StepParts {
  static constexpr std::array<const char*, 5> kComputations = {"F", "B", "I", "W", "composed"};
  std::array<double, kComputations.size()> computing = {};  // composed ones: while at least one runs
  double waits = 0;                   // before computations that use a message: until it is there and copied out
  double between = 0;                 // before others, and within composed ones
  double end = 0;                     // from the rank's last computation to that of all ranks
  std::vector<double> of_ranks = {};  // computing of each rank, no mean: GPUs at the same work differ in their clocks
};

[[nodiscard]] StepParts parts_of(const d9d::PipelineProgram& program, const d9d::Simulation& run);

}  // namespace benchmarks
