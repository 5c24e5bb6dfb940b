// ZB-V has no bubble if F, I and W take equally long, and needs the memory of 1F1B (Qi et al., arXiv:2405.15362).
#include <algorithm>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/compute_order.h"
#include "d9d/pipelining/schedules/v_counters.h"

namespace d9d {
namespace {

// Returns the order for at least 2 P - 1 microbatches: rank 0 runs as many forwards of its first stage before any
// backward.
RankProgram full_plan(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
  const std::int64_t num_ranks = stages.num_ranks();
  detail::VCounters v(stages, rank);
  auto& a = v.early();
  auto& b = v.late();
  const auto input_and_weight = [&](detail::VCounters::Stage& stage) {
    v.backward_input(stage);
    v.backward_weight(stage);
  };
  for (std::int64_t i = 0; i < 2 * (num_ranks - rank) - 1; ++i) v.forward(a);
  for (std::int64_t i = 0; i < rank; ++i) {
    v.forward(b);
    v.forward(a);
  }
  for (std::int64_t i = 0; i < num_ranks - rank; ++i) {
    v.forward(b);
    input_and_weight(b);
  }
  while (b.num_forwards < a.num_forwards || a.num_forwards < num_microbatches) {
    if (a.num_forwards < num_microbatches) v.forward(a);
    input_and_weight(a);
    v.forward(b);
    input_and_weight(b);
  }
  for (std::int64_t i = 0; i < rank; ++i) {
    v.backward_input(a);
    v.backward_input(b);
  }
  for (std::int64_t i = 0; i < num_ranks - rank; ++i) input_and_weight(a);
  while (b.num_weights < b.num_backwards) v.backward_weight(b);
  while (a.num_weights < a.num_backwards) v.backward_weight(a);
  for (const auto* stage : {&a, &b}) {
    D9D_ASSERT(stage->num_forwards == num_microbatches && stage->num_backwards == num_microbatches &&
                   stage->num_weights == num_microbatches,
               "zero_bubble_v of ", num_ranks, " ranks, ", num_microbatches, " microbatches, rank ", rank);
  }
  return v.take();
}

}  // namespace

RankProgram zero_bubble_v_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
  const std::int64_t num_ranks = stages.num_ranks();
  D9D_CHECK(stages == StagePlacement::v(num_ranks, 2), ConfigError,
            "[pipelining::zero_bubble_v] expected 2 stages a rank as a V, got another placement of ",
            stages.num_stages(), " stages on ", num_ranks, " ranks. Use StagePlacement::v.");
  RankProgram program = full_plan(stages, rank, std::max(2 * num_ranks - 1, num_microbatches));
  std::erase_if(program, [&](const Action& action) {
    return microbatch_of(compute_parts(action).front()).value >= num_microbatches;
  });
  return program;
}

}  // namespace d9d
