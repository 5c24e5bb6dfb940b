#include "d9d/pipelining/program/live_microbatches.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/check_program.h"

namespace d9d {

std::vector<std::vector<WaitingMicrobatches>> waiting_microbatches(const PipelineProgram& program, std::int64_t rank) {
  std::vector<WaitingMicrobatches> now;
  for (const StageIndex stage : program.stages.stages_of(rank)) now.push_back({.stage = stage});
  const auto of = [&](const ComputeAction& part) -> WaitingMicrobatches& {
    return *std::ranges::find(now, stage_of(part), &WaitingMicrobatches::stage);
  };
  const bool has_backward = program.has_backward();
  std::vector<std::vector<WaitingMicrobatches>> all;
  for (const Action& action : program.ranks.at(static_cast<std::size_t>(rank))) {
    // While composed computations run, both the microbatch of the forward and that of the backward are live.
    const auto parts = compute_parts(action);
    for (const ComputeAction& part : parts) {
      if (has_backward && holds<ForwardAction>(part)) ++of(part).for_backward;
    }
    all.push_back(now);
    for (const ComputeAction& part : parts) {
      if (holds<BackwardAction>(part) || holds<BackwardInputAction>(part)) --of(part).for_backward;
      if (holds<BackwardInputAction>(part)) ++of(part).for_weights;
      if (holds<BackwardWeightAction>(part)) --of(part).for_weights;
    }
  }
  return all;
}

std::vector<std::int64_t> live_microbatches(const PipelineProgram& program, std::int64_t rank) {
  std::vector<std::int64_t> counts;
  for (const auto& stages : waiting_microbatches(program, rank)) {
    std::int64_t& count = counts.emplace_back();
    for (const WaitingMicrobatches& each : stages) count += each.for_backward + each.for_weights;
  }
  return counts;
}

std::vector<std::int64_t> peak_live_microbatches(const PipelineProgram& program) {
  std::vector<std::int64_t> peaks;
  for (std::int64_t rank = 0; rank < program.stages.num_ranks(); ++rank) {
    const auto counts = live_microbatches(program, rank);
    peaks.push_back(counts.empty() ? 0 : *std::ranges::max_element(counts));
  }
  return peaks;
}

namespace detail {

void check_live_microbatches(const PipelineProgram& program, std::int64_t limit) {
  for (std::int64_t rank = 0; rank < program.stages.num_ranks(); ++rank) {
    const auto counts = live_microbatches(program, rank);
    const auto above = std::ranges::find_if(counts, [&](std::int64_t count) { return count > limit; });
    if (above == counts.end()) continue;
    throw ConfigError(
        cat("[pipelining::validate] ",
            place_text(program, static_cast<std::size_t>(rank), static_cast<std::size_t>(above - counts.begin())),
            ": expected at most ", limit, " live microbatches, got ", *above,
            ". Use a schedule that keeps fewer, or a higher limit."));
  }
}

}  // namespace detail
}  // namespace d9d
