// How many microbatches a rank keeps at once.
//
// Example
//   live_microbatches(program, 0);        // while each action of rank 0 runs: 1 2 3 3 3 ...
//   peak_live_microbatches(program);      // of each rank: 4 3 2 1
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

// Pairs of stage and microbatch that have run F and not yet B or W, while each action of `rank` runs. Without
// backward nothing is kept.
[[nodiscard]] std::vector<std::int64_t> live_microbatches(const PipelineProgram& program, std::int64_t rank);

// The most at once, of each rank.
[[nodiscard]] std::vector<std::int64_t> peak_live_microbatches(const PipelineProgram& program);

}  // namespace d9d
