// Interleaved 1F1B (Narayanan et al., arXiv:2104.04473) and its form with split backward (Qi et al., arXiv:2401.10241).
#include <algorithm>
#include <deque>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/compute_order.h"

namespace d9d {
namespace {

struct Visit {
  std::int64_t chunk;  // which of the rank's stages, in forward order
  std::int64_t microbatch;
};

// Returns the sizes of the groups of microbatches. There are M / P groups, rounded down but at least one, of sizes as
// even as possible. The largest groups come first: the number of forwards that run ahead is computed for the first
// group, and suffices for all later groups.
std::vector<std::int64_t> group_sizes(std::int64_t num_microbatches, std::int64_t num_ranks) {
  const std::int64_t num_groups = std::max<std::int64_t>(1, num_microbatches / num_ranks);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(num_groups), num_microbatches / num_groups);
  for (std::int64_t i = 0; i < num_microbatches % num_groups; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

// Returns the order of a rank's forwards: each group goes through all stages of the rank before the next group begins.
std::vector<Visit> forward_visits(const std::vector<std::int64_t>& sizes, std::int64_t num_chunks) {
  std::vector<Visit> visits;
  std::int64_t first = 0;
  for (const std::int64_t size : sizes) {
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      for (std::int64_t i = 0; i < size; ++i) visits.push_back({.chunk = chunk, .microbatch = first + i});
    }
    first += size;
  }
  return visits;
}

}  // namespace

RankProgram one_f_one_b_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches,
                              const OneFOneBScheduleConfig& config) {
  const std::int64_t num_ranks = stages.num_ranks();
  const std::int64_t num_chunks = config.num_stages_per_rank;
  D9D_CHECK(stages == StagePlacement::loop(num_ranks, num_chunks), ConfigError, "[pipelining::1f1b] expected ",
            num_chunks, " stages a rank in a loop, got another placement of ", stages.num_stages(), " stages on ",
            num_ranks, " ranks. Use StagePlacement::loop.");
  const auto sizes = group_sizes(num_microbatches, num_ranks);
  const auto visits = forward_visits(sizes, num_chunks);
  const std::int64_t ahead_a_rank = config.zero_bubble || config.depth == OneFOneBDepth::kClassic ? 1 : 2;
  const auto total = static_cast<std::int64_t>(visits.size());
  const std::int64_t ahead = std::min((num_chunks - 1) * sizes[0] + ahead_a_rank * (num_ranks - 1 - rank), total);

  RankProgram program;
  std::deque<BackwardWeightAction> pending;
  const auto emit_pending = [&] {
    program.emplace_back(pending.front());
    pending.pop_front();
  };
  for (std::int64_t step = 0; step < total + ahead; ++step) {
    if (step < total) {
      const auto [chunk, microbatch] = visits[static_cast<std::size_t>(step)];
      program.emplace_back(ForwardAction{{chunk * num_ranks + rank}, {microbatch}});
    }
    if (step < ahead) continue;
    const auto [chunk, microbatch] = visits[static_cast<std::size_t>(step - ahead)];
    const StageIndex stage{(num_chunks - 1 - chunk) * num_ranks + rank};
    if (!config.zero_bubble) {
      program.emplace_back(BackwardAction{stage, {microbatch}});
      continue;
    }
    program.emplace_back(BackwardInputAction{stage, {microbatch}});
    pending.push_back({stage, {microbatch}});
    if (step - ahead >= rank) emit_pending();
  }
  while (!pending.empty()) emit_pending();
  return program;
}

}  // namespace d9d
