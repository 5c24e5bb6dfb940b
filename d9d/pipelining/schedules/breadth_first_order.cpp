#include <ranges>

#include "d9d/pipelining/schedules/compute_order.h"

namespace d9d {

RankProgram breadth_first_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
  RankProgram program;
  for (const StageIndex stage : stages.stages_of(rank)) {
    for (std::int64_t m = 0; m < num_microbatches; ++m) program.emplace_back(ForwardAction{stage, {m}});
  }
  for (const StageIndex stage : std::views::reverse(stages.stages_of(rank))) {
    for (std::int64_t m = num_microbatches - 1; m >= 0; --m) program.emplace_back(BackwardAction{stage, {m}});
  }
  return program;
}

RankProgram depth_first_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
  RankProgram program;
  for (std::int64_t m = 0; m < num_microbatches; ++m) {
    for (const StageIndex stage : stages.stages_of(rank)) program.emplace_back(ForwardAction{stage, {m}});
    for (const StageIndex stage : std::views::reverse(stages.stages_of(rank))) {
      program.emplace_back(BackwardAction{stage, {m}});
    }
  }
  return program;
}

}  // namespace d9d
