// Computations that a program composes: the order in which they are issued.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/pipelining/executor/pipeline_executor.h"

#include "tests/pipelining/executor/toy_stages.h"
#include "tests/support/ranks.h"

namespace d9d::test::composed_test {
namespace {

constexpr std::int64_t kNumMicrobatches = 4;

// Both stages of dual_pipe_v on one rank: F0.0 F1.0 F0.1 B1.0, then pairs, the first one F1.1 with B0.0.
TEST(Composed, Issues_the_backward_first) {
  run_ranks(RankBackend::kThreads, 1, [](World& world) {
    const DistContext context({.world = borrowed(world), .log_sink = [](std::string_view) {}});
    PipelineExecutor executor(context, schedule_of(DualPipeVScheduleConfig{}));
    const ToyNetwork network({.num_stages = 2, .num_microbatches = kNumMicrobatches});
    ToyStage first(network, {0}), second(network, {1});
    std::vector<std::string> issued;
    for (ToyStage* stage : {&first, &second}) {
      stage->on_forward = [&](StageIndex index, MicrobatchIndex microbatch) {
        issued.push_back(to_text(ComputeAction(ForwardAction{index, microbatch})));
      };
      stage->on_backward = [&](StageIndex index, MicrobatchIndex microbatch, BackwardPart part) {
        if (part == BackwardPart::kWhole) issued.push_back(to_text(ComputeAction(BackwardAction{index, microbatch})));
      };
    }
    executor.run({&first, &second}, kNumMicrobatches);
    const PipelineProgram program = build_program(schedule_of(DualPipeVScheduleConfig{}), 1, kNumMicrobatches);
    std::size_t num_pairs = 0;
    for (const Action& action : program.ranks[0]) {
      if (!holds<ComposedAction>(action)) continue;
      const auto parts = compute_parts(action);
      const auto place_of = [&](const ComputeAction& part) { return std::ranges::find(issued, to_text(part)); };
      ASSERT_TRUE(holds<ForwardAction>(parts[0]) && holds<BackwardAction>(parts[1])) << to_text(action);
      EXPECT_LT(place_of(parts[1]), place_of(parts[0])) << to_text(action);
      ++num_pairs;
    }
    EXPECT_GE(num_pairs, 3U);
  });
}

}  // namespace
}  // namespace d9d::test::composed_test
