// The microbatches that a rank keeps at the same time.
//
// Example
//   waiting_microbatches(program, 0);     // while each action of rank 0 runs, of each of its stages: {{0, 1, 0}} ...
//   live_microbatches(program, 0);        // the same without a difference between them: 1 2 3 3 3 ...
//   peak_live_microbatches(program);      // of each rank: 4 3 2 1
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

// The microbatches of a stage of which its rank keeps something.
struct WaitingMicrobatches {
  StageIndex stage = {};
  std::int64_t for_backward = 0;  // with their activations: from the beginning of F to the end of B or I
  std::int64_t for_weights = 0;   // from the end of I to the end of W
  bool operator==(const WaitingMicrobatches&) const = default;
};

// Returns, for each action of `rank`, those of each stage of the rank, in increasing order, while the action runs.
// Returns zeros for a program without a backward.
[[nodiscard]] std::vector<std::vector<WaitingMicrobatches>> waiting_microbatches(const PipelineProgram& program,
                                                                                 std::int64_t rank);

// Returns, for each action of `rank`, the number of live microbatches while the action runs. A microbatch is live on a
// stage from the beginning of F to the end of B or W, and counts once for each stage of the rank where it is live.
// Returns zeros for a program without a backward.
[[nodiscard]] std::vector<std::int64_t> live_microbatches(const PipelineProgram& program, std::int64_t rank);

// Returns the maximum of live_microbatches() for each rank.
[[nodiscard]] std::vector<std::int64_t> peak_live_microbatches(const PipelineProgram& program);

}  // namespace d9d
