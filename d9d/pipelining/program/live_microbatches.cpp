#include "d9d/pipelining/program/live_microbatches.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/check_program.h"

namespace d9d {

std::vector<std::int64_t> live_microbatches(const PipelineProgram& program, std::int64_t rank) {
  const auto& actions = program.ranks.at(static_cast<std::size_t>(rank));
  const bool has_backward = program.has_backward();
  std::vector<std::int64_t> counts;
  std::int64_t live = 0;
  for (const auto& action : actions) {
    // While composed computations run, both the microbatch of the forward and that of the backward are live.
    const auto parts = compute_parts(action);
    const auto is_forward = [](const ComputeAction& part) { return holds<ForwardAction>(part); };
    const auto is_last = [](const ComputeAction& part) {
      return holds<BackwardAction>(part) || holds<BackwardWeightAction>(part);
    };
    if (has_backward) live += std::ranges::count_if(parts, is_forward);
    counts.push_back(live);
    live -= std::ranges::count_if(parts, is_last);
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
