// Values that the ranks of a job exchange in each step besides gradients: whether the job stops, the progress of its
// save, how long it waited for data, and the number of microbatches of each rank in the next step. The all-reduce that
// sums the losses also sums these values (RankReport::numbers), so they need no collective of their own.
//
// Example
//   const StepTotals step = gradients.apply(optimizer, rate, {.numbers = to_numbers({.asks_to_stop = true}, ranks)});
//   if (read_votes(step.numbers).stops) ...                  // on all ranks, if one of them wants to stop
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "d9d/checkpoint/save_progress.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// The values of one rank.
struct RankVotes {
  int signal = 0;             // SIGINT or SIGTERM, which ask to stop; 0: none
  bool asks_to_stop = false;  // StopRequest
  SaveProgress save = {};
  std::int64_t next_microbatches = 0;  // 0: not known yet
  double data_seconds = 0;             // for which the step has waited for its data
};

// The values of all ranks together, the same on each rank.
struct JobVotes {
  bool stops = false;  // at least one rank has a signal or asks to stop
  int signal = 0;      // that of a rank that has one, SIGTERM before SIGINT; 0: none
  SaveProgress save = {};
  std::vector<std::int64_t> next_microbatches = {};  // of each rank; empty in a job of one rank
  double data_seconds = 0;                           // mean over ranks
};

// Local. to_numbers() encodes the votes of this rank as numbers, read_votes() decodes the sums of these numbers over
// ranks. ranks: all ranks of the job.
[[nodiscard]] std::vector<double> to_numbers(const RankVotes& votes, const DeviceMesh& ranks);
[[nodiscard]] JobVotes read_votes(std::span<const double> sums);

// Collective over the job, for votes outside of the sums of a step. side: a stream of the job's device. The host waits
// for the votes of the other ranks, but not for the work of the current stream.
[[nodiscard]] JobVotes count_votes(const DistContext& context, const SideStream& side, const RankVotes& votes);

}  // namespace d9d
