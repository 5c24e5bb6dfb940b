// The order of forwards without backwards, on every placement of stages.
#include <gtest/gtest.h>

#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/simulate.h"

namespace d9d::forward_order_test {
namespace {

// The most transfers that one rank has received, or has made for its own next stage, and has not used yet.
std::int64_t most_waiting(const Simulation& run, const StagePlacement& stages) {
  std::int64_t most = 0;
  for (const ComputeSpan& now : run.computations) {
    std::int64_t waiting = 0;
    for (const ComputeSpan& made : run.computations) {
      const auto& [stage, microbatch] = std::get<ForwardAction>(made.action);
      if (made.end > now.start || stage.value + 1 == stages.num_stages()) continue;
      for (const ComputeSpan& used : run.computations) {
        const auto& next = std::get<ForwardAction>(used.action);
        const bool is_its_use = next.stage.value == stage.value + 1 && next.microbatch == microbatch;
        if (is_its_use && used.rank == now.rank && used.start > now.start) ++waiting;
      }
    }
    most = std::max(most, waiting);
  }
  return most;
}

TEST(ForwardOrder, Is_valid_and_cannot_hang_on_any_placement) {
  for (std::int64_t num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    for (std::int64_t v = 1; v <= 4; ++v) {
      for (const StagePlacement& stages : {StagePlacement::loop(num_ranks, v), StagePlacement::v(num_ranks, v)}) {
        for (const std::int64_t num_microbatches : {1, 2, 3, 7, 12}) {
          for (const auto slots : {0, 2}) {
            EXPECT_NO_THROW(
                (void)build_program(forwards_on(stages), num_ranks, num_microbatches, {.num_inbox_slots = slots}))
                << "P = " << num_ranks << ", V = " << v << ", M = " << num_microbatches << ", slots " << slots;
          }
        }
      }
    }
  }
}

TEST(ForwardOrder, Waits_only_while_the_pipeline_fills_and_drains) {
  for (std::int64_t num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    for (std::int64_t v = 1; v <= 4; ++v) {
      for (const StagePlacement& stages : {StagePlacement::loop(num_ranks, v), StagePlacement::v(num_ranks, v)}) {
        constexpr std::int64_t kMicrobatches = 12;
        const Simulation run = simulate(build_compute_program(forwards_on(stages), num_ranks, kMicrobatches));
        const auto way = static_cast<double>(stages.num_stages());
        EXPECT_LE(run.makespan, static_cast<double>(kMicrobatches * v) + 2 * way)
            << "P = " << num_ranks << ", V = " << v;
      }
    }
  }
}

TEST(ForwardOrder, Holds_as_many_transfers_however_many_microbatches_there_are) {
  for (const StagePlacement& stages :
       {StagePlacement::loop(4, 2), StagePlacement::v(4, 2), StagePlacement::loop(3, 4)}) {
    const auto held = [&](std::int64_t num_microbatches) {
      const auto program = build_compute_program(forwards_on(stages), stages.num_ranks(), num_microbatches);
      return most_waiting(simulate(program), stages);
    };
    EXPECT_LE(held(24), held(12));
    EXPECT_LE(held(24), 2 * stages.num_ranks());
  }
}

}  // namespace
}  // namespace d9d::forward_order_test
