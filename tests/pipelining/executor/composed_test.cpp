// Composed computations where they run one after the other: their order, and the order of their messages.
#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipelining/executor/toy_part.h"

namespace d9d::test::composed_test {
namespace {

constexpr std::int64_t kNumMicrobatches = 4;

// Both stages of dual_pipe_v on one rank: F0.0 F1.0 F0.1 B1.0, then pairs, the first one F1.1 with B0.0.
TEST(Composed, Run_in_the_order_of_the_program) {
  run_ranks(RankBackend::kThreads, 1, [](World& world) {
    const DistContext context = context_of(world);
    Part part(context, DualPipeVScheduleConfig{}, {.num_microbatches = kNumMicrobatches});
    std::vector<std::string> issued;
    for (const auto& stage : part.stages) {
      stage->on_forward = [&](StageIndex index, MicrobatchIndex microbatch) {
        issued.push_back(to_text(ComputeAction(ForwardAction{index, microbatch})));
      };
      stage->on_backward = [&](StageIndex index, MicrobatchIndex microbatch, BackwardPart which) {
        if (which == BackwardPart::kWhole) issued.push_back(to_text(ComputeAction(BackwardAction{index, microbatch})));
      };
    }
    part.run();
    const PipelineProgram program = build_program(schedule_of(DualPipeVScheduleConfig{}), 1, kNumMicrobatches);
    std::size_t num_pairs = 0;
    for (const Action& action : program.ranks[0]) {
      if (!holds<ComposedAction>(action)) continue;
      const auto parts = compute_parts(action);
      const auto place_of = [&](const ComputeAction& one) { return std::ranges::find(issued, to_text(one)); };
      ASSERT_TRUE(holds<ForwardAction>(parts[0]) && holds<BackwardAction>(parts[1])) << to_text(action);
      EXPECT_LT(place_of(parts[0]), place_of(parts[1])) << to_text(action);
      ++num_pairs;
    }
    EXPECT_GE(num_pairs, 3U);
  });
}

// The program of rank 0 contains "0F3|3B1 0SEND_F3": the backward only ends when rank 1 has begun the forward that
// needs the message.
TEST(Composed, A_forward_is_sent_before_the_backward_beside_it) {
  std::promise<void> begun;
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, DualPipeVScheduleConfig{}, {.num_microbatches = kNumMicrobatches});
    part.stages[0]->on_forward = [&](StageIndex stage, MicrobatchIndex microbatch) {
      if (stage.value == 1 && microbatch.value == 3) begun.set_value();
    };
    part.stages[1]->on_backward = [&](StageIndex stage, MicrobatchIndex microbatch, BackwardPart which) {
      if (stage.value != 3 || microbatch.value != 1 || which != BackwardPart::kWhole) return;
      EXPECT_EQ(begun.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    };
    const auto program = build_program(schedule_of(DualPipeVScheduleConfig{}), 2, kNumMicrobatches);
    EXPECT_THAT(to_text(program.ranks[0]), ::testing::HasSubstr("0F3|3B1 0SEND_F3"));
    part.run();
  });
}

}  // namespace
}  // namespace d9d::test::composed_test
