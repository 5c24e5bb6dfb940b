// The number of microbatches that a rank keeps at the same time.
//
// Example
//   live_microbatches(program, 0);        // while each action of rank 0 runs: 1 2 3 3 3 ...
//   peak_live_microbatches(program);      // of each rank: 4 3 2 1
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

// Returns, for each action of `rank`, the number of live microbatches while the action runs. A microbatch is live on a
// stage from the beginning of F to the end of B or W, and counts once for each stage of the rank where it is live.
// Returns zeros for a program without a backward.
[[nodiscard]] std::vector<std::int64_t> live_microbatches(const PipelineProgram& program, std::int64_t rank);

// Returns the maximum of live_microbatches() for each rank.
[[nodiscard]] std::vector<std::int64_t> peak_live_microbatches(const PipelineProgram& program);

}  // namespace d9d
