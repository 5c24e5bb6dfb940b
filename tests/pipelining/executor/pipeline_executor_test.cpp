#include "d9d/pipelining/executor/pipeline_executor.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/live_microbatches.h"

#include "tests/pipelining/executor/toy_part.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/gpu_ranks.h"

namespace d9d::test::pipeline_executor_test {
namespace {

struct NamedSchedule {
  const char* name;
  PipelineScheduleConfig config;
  std::int64_t least_microbatches_per_rank = 0;
};

const std::vector<NamedSchedule>& schedules() {
  static const std::vector<NamedSchedule> all = {
      {"gpipe", GPipeScheduleConfig{}},
      {"looped_bfs 2", LoopedBfsScheduleConfig{.num_stages_per_rank = 2}},
      {"1f1b", OneFOneBScheduleConfig{}},
      {"1f1b classic", OneFOneBScheduleConfig{.depth = OneFOneBDepth::kClassic}},
      {"1f1b 2", OneFOneBScheduleConfig{.num_stages_per_rank = 2}},
      {"1f1b 3 zero bubble", OneFOneBScheduleConfig{.num_stages_per_rank = 3, .zero_bubble = true}},
      {"zero_bubble_v", ZeroBubbleVScheduleConfig{}},
      {"dual_pipe_v", DualPipeVScheduleConfig{}, 2}};
  return all;
}

class Executor : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (GetParam().backend == RankBackend::kNccl && !has_gpus(GetParam().num_ranks)) GTEST_SKIP() << "too few GPUs";
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, Executor,
                         ::testing::Values(Setting{RankBackend::kThreads, 1}, Setting{RankBackend::kThreads, 2},
                                           Setting{RankBackend::kThreads, 3}, Setting{RankBackend::kThreads, 4},
                                           Setting{RankBackend::kThreads, 8}),
                         [](const auto& setting) { return cat(setting.param.num_ranks); });
INSTANTIATE_TEST_SUITE_P(Gloo, Executor,
                         ::testing::Values(Setting{RankBackend::kGloo, 2, ExchangeMethod::kCommunicator},
                                           Setting{RankBackend::kGloo, 4, ExchangeMethod::kCommunicator}),
                         [](const auto& setting) { return cat(setting.param.num_ranks); });
INSTANTIATE_TEST_SUITE_P(Nccl, Executor,
                         ::testing::Values(Setting{RankBackend::kNccl, 2},
                                           Setting{RankBackend::kNccl, 2, ExchangeMethod::kCommunicator}),
                         [](const auto& setting) {
                           return setting.param.messages == ExchangeMethod::kCopyEngine ? "copies" : "communicator";
                         });

TEST_P(Executor, Gives_the_gradients_of_the_network_in_one_piece) {
  for (const NamedSchedule& schedule : schedules()) {
    run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
      SCOPED_TRACE(schedule.name);
      const DistContext context = context_of(world);
      const std::int64_t least = std::max<std::int64_t>(1, schedule.least_microbatches_per_rank * world.size());
      for (std::int64_t m = least; m <= std::max<std::int64_t>(9, least);
           m += GetParam().backend == RankBackend::kThreads ? 1 : 4) {
        SCOPED_TRACE(cat(m, " microbatches"));
        Part part(context, schedule.config, {.num_microbatches = m, .has_more_tensors = m % 2 == 0},
                  GetParam().links(/*num_slots=*/1 + m % 2));
        part.run();
        expect_gradients_of_one_piece(part);
        for (const auto& stage : part.stages) {
          EXPECT_EQ(stage->num_complete, m);
          EXPECT_TRUE(stage->is_complete);
        }
      }
    });
  }
}

TEST_P(Executor, Hands_gradients_to_the_first_trained_layer_past_frozen_ones) {
  run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, OneFOneBScheduleConfig{.num_stages_per_rank = 2},
              {.num_microbatches = 4, .num_frozen = 1, .has_more_tensors = false}, GetParam().links());
    part.run();
    expect_gradients_of_one_piece(part);
  });
}

TEST_P(Executor, Runs_forwards_alone_without_a_graph) {
  run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, InferenceScheduleConfig{}, {.num_microbatches = 5}, GetParam().links());
    part.run();
    EXPECT_LE(part.stages.front()->num_kept, GetParam().num_kept(5));
    const bool is_last = world.rank() + 1 == world.size();
    ASSERT_EQ(part.stages.front()->outputs.size(), is_last ? 5 : 0);
    for (std::size_t i = 0; i < part.stages.front()->outputs.size(); ++i) {
      at::Tensor x = part.network.input(static_cast<std::int64_t>(i));
      for (std::int64_t layer = 0; layer < world.size(); ++layer) x = part.network.layer(layer, x);
      EXPECT_TRUE(at::equal(part.stages.front()->outputs[i], x));
      EXPECT_FALSE(part.stages.front()->outputs[i].requires_grad());
    }
  });
}

TEST_P(Executor, Drops_an_output_when_it_is_sent) {
  run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 6}, GetParam().links(/*num_slots=*/1));
    part.run();
    EXPECT_LE(part.stages.front()->num_kept, GetParam().num_kept(6, /*num_slots=*/1));
  });
}

// From F to I a stage keeps its input and its graph, from I to W its input and the gradient of its product.
TEST_P(Executor, Keeps_as_many_microbatches_as_the_validator_says) {
  for (const NamedSchedule& schedule : schedules()) {
    run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
      SCOPED_TRACE(schedule.name);
      const DistContext context = context_of(world);
      const std::int64_t num_microbatches = std::max<std::int64_t>(12, 2 * world.size());
      PipelineProgram program = build_program(schedule_of(schedule.config), world.size(), num_microbatches);
      if (context.device().is_cuda()) std::ranges::transform(program.ranks, program.ranks.begin(), as_issued);
      Part part(context, schedule.config, {.num_microbatches = num_microbatches});
      std::int64_t most = 0;
      for (const auto& stage : part.stages) {
        stage->on_forward = [&](StageIndex, MicrobatchIndex) {
          std::int64_t num_live = 1;  // the microbatch that begins
          for (const auto& each : part.stages) num_live += each->num_live();
          most = std::max(most, num_live);
        };
      }
      part.run();
      EXPECT_EQ(most, peak_live_microbatches(program)[static_cast<std::size_t>(world.rank())]);
      for (const auto& stage : part.stages) EXPECT_EQ(stage->num_live(), 0);
    });
  }
}

// A custom schedule: backwards in the order of forwards.
TEST_P(Executor, Runs_a_schedule_of_ones_own) {
  const PipelineSchedule schedule{
      .name = "first in, first out",
      .placement = [](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, 1); },
      .order =
          [](const StagePlacement&, std::int64_t rank, std::int64_t num_microbatches) {
            RankProgram program;
            for (std::int64_t i = 0; i < num_microbatches; ++i) {
              program.push_back(ComputeAction(ForwardAction{.stage = {rank}, .microbatch = {i}}));
            }
            for (std::int64_t i = 0; i < num_microbatches; ++i) {
              program.push_back(ComputeAction(BackwardAction{.stage = {rank}, .microbatch = {i}}));
            }
            return program;
          }};
  run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, schedule, {.num_microbatches = 5}, GetParam().links());
    part.run();
    expect_gradients_of_one_piece(part);
  });
}

TEST(ExecutorPrograms, Written_by_hand_run) {
  const PipelineProgram program = parse_program(
      "r0: 0F0 0F2 2F2 2B2 2F0 0F1 0I2 2F1 2I0 2I1 0W2 0B0 2W0 0I1 2W1 0W1\n"
      "r1: 1F2 1F0 1B2 1F1 1I0|1I1 1W1 1W0\n");
  const PipelineSchedule schedule{
      .name = "by hand",
      .placement = [&](std::int64_t) { return program.stages; },
      .order = [&](const auto&, std::int64_t rank, std::int64_t) { return program.ranks.at(rank); }};
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, schedule, {.num_microbatches = 3});
    part.run();
    expect_gradients_of_one_piece(part);
  });
}

void pause(std::int64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  std::this_thread::sleep_for(
      std::chrono::microseconds(random() % 1500));  // changes the order of events, waits for none
}

struct SlowCommunicator : ForwardingCommunicator {
  using ForwardingCommunicator::ForwardingCommunicator;
  Work exchange(const std::vector<PointToPoint>& messages) override {
    pause(num_calls++ * 17 + group().index);
    return inner().exchange(messages);
  }
  std::int64_t num_calls = 0;
};

TEST_P(Executor, Gives_the_same_bits_whatever_takes_how_long) {
  for (const PipelineScheduleConfig& config :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{.num_stages_per_rank = 2}),
        PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
      const ToyShape shape{.num_microbatches = std::max<std::int64_t>(8, 2 * world.size())};
      const DistContext fast = context_of(world);
      Part expected(fast, config, shape, GetParam().links());
      expected.run();
      const std::shared_ptr<World> slow_world = world_of<SlowCommunicator>(world);
      for (std::int64_t seed = 0; seed < 2; ++seed) {
        const DistContext slow = context_of(*slow_world);
        Part part(slow, config, shape, GetParam().links(/*num_slots=*/1 + seed));
        for (const auto& stage : part.stages) {
          stage->on_forward = [=](StageIndex s, MicrobatchIndex m) { pause(seed * 100 + s.value * 10 + m.value); };
          stage->on_backward = [=](StageIndex s, MicrobatchIndex m, BackwardPart) {
            pause(seed * 99 + s.value * 11 + m.value);
          };
        }
        part.run();
        for (const StageIndex stage : part.executor.stages()) {
          const auto index = static_cast<std::size_t>(stage.value);
          EXPECT_TRUE(at::equal(part.network.weights[index].grad(), expected.network.weights[index].grad()));
        }
      }
    });
  }
}

}  // namespace
}  // namespace d9d::test::pipeline_executor_test
