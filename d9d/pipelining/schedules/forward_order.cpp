#include <algorithm>
#include <optional>
#include <vector>

#include "d9d/pipelining/schedules/compute_order.h"

namespace d9d {

// Plans all ranks in ticks of one forward. A rank with V stages needs V ticks for a microbatch, so a microbatch enters
// the first stage every V ticks at the earliest, for the largest V of all ranks; this bounds the number of transfers in
// flight. In each tick a rank runs the earliest microbatch that has arrived.
RankProgram forward_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
  std::int64_t most_stages = 1;
  for (std::int64_t each = 0; each < stages.num_ranks(); ++each) {
    most_stages = std::max(most_stages, std::ssize(stages.stages_of(each)));
  }
  std::vector<std::int64_t> num_done(static_cast<std::size_t>(stages.num_stages()));  // microbatches, by stage
  const auto done = [&](std::int64_t stage) -> std::int64_t& { return num_done[static_cast<std::size_t>(stage)]; };
  RankProgram program;
  for (std::int64_t tick = 0; done(stages.num_stages() - 1) < num_microbatches; ++tick) {
    const auto has_arrived = [&](std::int64_t stage) {
      const std::int64_t microbatch = done(stage);
      if (microbatch == num_microbatches) return false;
      return stage == 0 ? tick >= most_stages * microbatch : done(stage - 1) > microbatch;
    };
    std::vector<std::int64_t> running;  // stages in this tick
    for (std::int64_t each = 0; each < stages.num_ranks(); ++each) {
      std::optional<std::int64_t> next;
      for (const StageIndex stage : stages.stages_of(each)) {
        if (has_arrived(stage.value) && (!next || done(stage.value) < done(*next))) next = stage.value;
      }
      if (!next) continue;
      running.push_back(*next);
      if (each == rank) program.emplace_back(ForwardAction{StageIndex{*next}, {done(*next)}});
    }
    for (const std::int64_t stage : running) ++done(stage);
  }
  return program;
}

}  // namespace d9d
