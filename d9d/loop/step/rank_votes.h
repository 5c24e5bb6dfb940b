// What the ranks of a job tell each other in each step besides gradients: whether the job stops, how its save goes on,
// and how many microbatches each rank has in the next step. It travels with the sums of the step (RankReport::numbers),
// so it needs no message of its own.
//
// Example
//   const StepTotals step = gradients.apply(optimizer, rate, {.numbers = to_numbers({.wants_to_stop = true}, ranks)});
//   if (read_votes(step.numbers).stops) ...                  // on all ranks, if one of them wants to stop
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "d9d/checkpoint/save_progress.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// What one rank says.
struct RankVotes {
  bool wants_to_stop = false;
  SaveProgress save = {};
  std::int64_t next_microbatches = 0;  // 0: not known yet
};

// What all ranks say, the same on all of them.
struct JobVotes {
  bool stops = false;  // at least one rank wants to stop
  SaveProgress save = {};
  std::vector<std::int64_t> next_microbatches = {};  // of each rank; empty in a job of one rank
};

// Local. The votes of this rank of `ranks`, all of the job, as numbers. read_votes() takes their sums over ranks.
[[nodiscard]] std::vector<double> to_numbers(const RankVotes& votes, const DeviceMesh& ranks);
[[nodiscard]] JobVotes read_votes(std::span<const double> sums);

}  // namespace d9d
