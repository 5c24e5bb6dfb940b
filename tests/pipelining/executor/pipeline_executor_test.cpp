#include "d9d/pipelining/executor/pipeline_executor.h"

#include <chrono>
#include <future>
#include <random>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/live_microbatches.h"
#include "d9d/pipelining/schedules/compute_order.h"

#include "tests/pipelining/executor/toy_stages.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/ranks.h"

namespace d9d::test::pipeline_executor_test {
namespace {

using ::testing::HasSubstr;

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

DistContext context_of(World& world) {
  return DistContext({.mesh = {.pipeline_parallel = world.size()},
                      .world = borrowed(world),
                      .local_rank = world.rank(),
                      .log_sink = [](std::string_view) {}});
}

// A rank's part of the network.
struct Part {
  Part(const DistContext& context, const PipelineScheduleConfig& config, ToyShape shape,
       const StageLinksConfig& links = {})
      : Part(context, schedule_of(config), shape, links) {}
  Part(const DistContext& context, PipelineSchedule schedule, ToyShape shape, const StageLinksConfig& links = {})
      : executor(context, std::move(schedule), links), network([&] {
          shape.num_stages = executor.placement().num_stages();
          shape.device = context.device();
          return shape;
        }()) {
    for (const StageIndex stage : executor.stages()) stages.push_back(std::make_unique<ToyStage>(network, stage));
  }
  void run() {
    std::vector<PipelineStage*> borrowed_stages;
    for (const auto& stage : stages) borrowed_stages.push_back(stage.get());
    executor.run(borrowed_stages, network.shape.num_microbatches);
  }

  PipelineExecutor executor;
  ToyNetwork network;
  std::vector<std::unique_ptr<ToyStage>> stages;
};

// Gradients of a layer are summed over microbatches in another order than on one rank.
constexpr double kRounding = 1e-13;

void expect_gradients_of_one_piece(const Part& part) {
  ToyNetwork whole(part.network.shape);
  whole.run_in_one_piece();
  const auto& own = part.executor.stages();
  for (std::int64_t i = 0; i < whole.shape.num_stages; ++i) {
    const at::Tensor& grad = part.network.weights[static_cast<std::size_t>(i)].grad();
    const at::Tensor& expected = whole.weights[static_cast<std::size_t>(i)].grad();
    const bool is_own = std::ranges::find(own, StageIndex{i}) != own.end();
    ASSERT_EQ(grad.defined(), is_own && expected.defined()) << "layer " << i;
    if (!grad.defined()) continue;
    EXPECT_TRUE(at::allclose(grad, expected, kRounding, kRounding)) << "layer " << i;
  }
}

struct Setting {
  RankBackend backend;
  std::int64_t num_ranks;
  ExchangeMethod messages = ExchangeMethod::kCopyEngine;
  friend void PrintTo(const Setting& setting, std::ostream* out) {
    *out << to_string(setting.backend) << " " << setting.num_ranks
         << (setting.messages == ExchangeMethod::kCopyEngine ? " copies" : " exchange");
  }
  [[nodiscard]] StageLinksConfig links(std::int64_t num_slots = 2) const {
    return {.num_inbox_slots = num_slots, .method = messages};
  }
};

class Executor : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (GetParam().backend == RankBackend::kNccl && !has_gpus(GetParam().num_ranks)) GTEST_SKIP() << "too few GPUs";
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, Executor,
                         ::testing::Values(Setting{RankBackend::kThreads, 1}, Setting{RankBackend::kThreads, 2},
                                           Setting{RankBackend::kThreads, 3}, Setting{RankBackend::kThreads, 4}),
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
      for (std::int64_t m = least; m <= 9; m += GetParam().backend == RankBackend::kThreads ? 1 : 4) {
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
    const bool is_last = world.rank() + 1 == world.size();
    ASSERT_EQ(part.stages.front()->outputs.size(), is_last ? 5 : 0);
    for (std::size_t i = 0; i < part.stages.front()->outputs.size(); ++i) {
      at::Tensor x = part.network.input(static_cast<std::int64_t>(i));
      for (std::int64_t layer = 0; layer < world.size(); ++layer) x = part.network.layer(layer, x);
      EXPECT_TRUE(at::equal(part.stages.front()->outputs[i], x));
    }
  });
}

TEST_P(Executor, Drops_an_output_when_it_is_sent) {
  run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 6}, GetParam().links(/*num_slots=*/1));
    part.run();
    // Gloo reads the memory of the last message until the receiver has it.
    EXPECT_LE(part.stages.front()->num_kept, GetParam().backend == RankBackend::kGloo ? 5 : 0);
  });
}

// From F to I a stage keeps its input and its graph, from I to W its input and the gradient of its product.
// Composed computations as a host issues them: the backward first, whose microbatch is gone when the forward begins.
PipelineProgram as_issued(PipelineProgram program) {
  for (RankProgram& rank : program.ranks) {
    RankProgram issued;
    for (const Action& action : rank) {
      const auto parts = compute_parts(action);
      if (parts.empty()) issued.push_back(action);
      issued.insert(issued.end(), parts.rbegin(), parts.rend());
    }
    rank = std::move(issued);
  }
  return program;
}

TEST_P(Executor, Keeps_as_many_microbatches_as_the_validator_says) {
  for (const NamedSchedule& schedule : schedules()) {
    run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
      SCOPED_TRACE(schedule.name);
      const DistContext context = context_of(world);
      constexpr std::int64_t kNumMicrobatches = 12;
      const PipelineProgram program = build_program(schedule_of(schedule.config), world.size(), kNumMicrobatches);
      Part part(context, schedule.config, {.num_microbatches = kNumMicrobatches});
      std::int64_t most = 0;
      for (const auto& stage : part.stages) {
        stage->on_forward = [&](StageIndex, MicrobatchIndex) {
          std::int64_t num_live = 1;  // the one that begins
          for (const auto& each : part.stages) num_live += each->num_live();
          most = std::max(most, num_live);
        };
      }
      part.run();
      EXPECT_EQ(most, peak_live_microbatches(as_issued(program))[static_cast<std::size_t>(world.rank())]);
      for (const auto& stage : part.stages) EXPECT_EQ(stage->num_live(), 0);
    });
  }
}

// A schedule of one's own: backwards in the order of forwards.
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

void pause(std::int64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));  // another order of events, no waiting
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
      const ToyShape shape{.num_microbatches = 8};
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

// What each of the ranks throws; empty: nothing.
std::vector<std::string> errors_of(const Setting& setting, const std::function<void(World&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(setting.num_ranks));
  try {
    run_ranks(setting.backend, setting.num_ranks, [&](World& world) {
      try {
        body(world);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(world.rank())] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {  // is among them
  }
  return errors;
}

class ExecutorFaults : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Threads, ExecutorFaults, ::testing::Values(Setting{RankBackend::kThreads, 2}),
                         [](const auto& setting) { return cat(setting.param.num_ranks); });
INSTANTIATE_TEST_SUITE_P(Gloo, ExecutorFaults,
                         ::testing::Values(Setting{RankBackend::kGloo, 2, ExchangeMethod::kCommunicator}),
                         [](const auto& setting) { return cat(setting.param.num_ranks); });

TEST_P(ExecutorFaults, A_stage_that_throws_ends_all_ranks) {
  for (const bool in_forward : {true, false}) {
    const auto errors = errors_of(GetParam(), [&](World& world) {
      const DistContext context = context_of(world);
      Part part(context, OneFOneBScheduleConfig{}, {.num_microbatches = 6}, GetParam().links());
      const auto fail = [](StageIndex stage, MicrobatchIndex microbatch) {
        D9D_CHECK(stage.value != 1 || microbatch.value != 2, StateError, "the toy breaks");
      };
      ToyStage& stage = *part.stages.front();
      if (in_forward) stage.on_forward = fail;
      if (!in_forward) stage.on_backward = [=](StageIndex s, MicrobatchIndex m, BackwardPart) { fail(s, m); };
      part.run();
    });
    EXPECT_THAT(errors[1],
                HasSubstr(cat("the toy breaks (", in_forward ? "forward" : "backward", " of stage 1, microbatch 2)")));
    EXPECT_THAT(errors[0], HasSubstr("the toy breaks"));
  }
}

struct OtherTransfer : ToyStage {
  using ToyStage::ToyStage;
  std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override {
    auto leaves = ToyStage::transfer(microbatch, boundary);
    if (microbatch.value == 1) leaves.front() = leaves.front().to(at::kFloat);
    return leaves;
  }
};

// What an I has left, its weights' gradients do not get, in this step or the next.
TEST(ExecutorSplitBackward, A_step_that_ends_between_the_halves_leaves_nothing_behind) {
  run_ranks(RankBackend::kThreads, 1, [&](World& world) {
    const PipelineSchedule schedule{
        .name = "all F, then all I, then all W",
        .placement = [](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, 2); },
        .order =
            [](const StagePlacement&, std::int64_t, std::int64_t num_microbatches) {
              RankProgram program;
              for (std::int64_t i = 0; i < num_microbatches; ++i) {
                const MicrobatchIndex microbatch{i};
                for (const std::int64_t s : {0, 1}) program.push_back(ComputeAction(ForwardAction{{s}, microbatch}));
              }
              for (std::int64_t i = 0; i < num_microbatches; ++i) {
                const MicrobatchIndex microbatch{i};
                for (const std::int64_t s : {1, 0})
                  program.push_back(ComputeAction(BackwardInputAction{{s}, microbatch}));
              }
              for (std::int64_t i = 0; i < num_microbatches; ++i) {
                const MicrobatchIndex microbatch{i};
                for (const std::int64_t s : {1, 0})
                  program.push_back(ComputeAction(BackwardWeightAction{{s}, microbatch}));
              }
              return program;
            }};
    const DistContext context = context_of(world);
    Part part(context, schedule, {.num_microbatches = 3});
    part.stages.front()->on_backward = [](StageIndex, MicrobatchIndex microbatch, BackwardPart which) {
      D9D_CHECK(which != BackwardPart::kWeight || microbatch.value != 1, StateError, "the toy breaks");
    };
    EXPECT_THROW(part.run(), StateError);
    for (const auto& stage : part.stages) EXPECT_EQ(stage->num_live(), 0);
    part.stages.front()->on_backward = nullptr;
    for (const at::Tensor& weight : part.network.weights) weight.mutable_grad() = at::Tensor();
    part.run();
    expect_gradients_of_one_piece(part);
  });
}

TEST_P(ExecutorFaults, Neighbours_that_expect_different_transfers_are_refused_on_all_ranks) {
  const auto errors = errors_of(GetParam(), [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 2, .has_more_tensors = false}, GetParam().links());
    if (world.rank() == 1) part.stages.front() = std::make_unique<OtherTransfer>(part.network, StageIndex{1});
    part.run();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error,
                HasSubstr("expected stage 0 to announce the transfer that stage 1 expects, from microbatch 0 on "
                          "Double [1, 5], from microbatch 1 on Float [2, 5], got from microbatch 0 on Double [1, "
                          "5], from microbatch 1 on Double [2, 5]"));
  }
}

TEST_P(ExecutorFaults, A_stage_that_hands_on_something_else_than_announced_is_named) {
  const auto errors = errors_of(GetParam(), [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 2, .has_more_tensors = false}, GetParam().links());
    part.stages.front() = std::make_unique<OtherTransfer>(part.network, part.executor.stages().front());
    part.run();
  });
  EXPECT_THAT(errors[0], HasSubstr("expected stage 0 to hand on what it announced, Float [2, 5], got Double [2, 5] for "
                                   "microbatch 1"));
  EXPECT_NE(errors[1], "");
}

TEST_P(ExecutorFaults, Different_numbers_of_microbatches_are_refused_on_all_ranks) {
  const auto errors = errors_of(GetParam(), [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 3 + world.rank()}, GetParam().links());
    part.run();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("as many microbatches on all ranks of a pipeline, got 3 on its rank 0 and 4 on its"));
  }
}

// As where each rank orders by what it has measured itself.
TEST_P(ExecutorFaults, A_schedule_of_ones_own_that_gives_ranks_different_programs_is_refused_on_all_ranks) {
  const auto errors = errors_of(GetParam(), [&](World& world) {
    const DistContext context = context_of(world);
    const PipelineSchedule schedule{
        .name = "own",
        .placement = [](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, 1); },
        .order =
            [asks = world.rank()](const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
              return asks == 0 ? breadth_first_order(stages, rank, num_microbatches)
                               : one_f_one_b_order(stages, rank, num_microbatches, {});
            }};
    Part part(context, schedule, {.num_microbatches = 3}, GetParam().links());
    part.run();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("expected own to give all ranks of a pipeline the same program, got another on its "
                                 "rank 1 than on its rank 0"));
  }
}

TEST_P(ExecutorFaults, A_placement_on_another_number_of_ranks_is_refused_on_all_ranks) {
  for (const std::int64_t more : {-1, 1}) {
    const auto errors = errors_of(GetParam(), [&](World& world) {
      const DistContext context = context_of(world);
      const PipelineSchedule schedule{
          .name = "own",
          .placement = [&](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks + more, 1); },
          .order = breadth_first_order};
      const PipelineExecutor executor(context, schedule);
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr(cat("expected own to place stages on 2 ranks, got ", 2 + more)));
    }
  }
}

TEST_P(ExecutorFaults, A_rank_that_does_not_come_is_named_with_what_is_waited_for) {
  std::promise<void> has_failed;
  const std::shared_future<void> failure = has_failed.get_future().share();
  const auto errors = errors_of(GetParam(), [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 2}, GetParam().links());
    part.run();
    world.set_timeout(std::chrono::milliseconds(300));
    if (world.rank() == 0) part.stages.front()->on_forward = [&](StageIndex, MicrobatchIndex) { failure.wait(); };
    try {
      part.run();
    } catch (const std::exception&) {
      if (world.rank() == 1) has_failed.set_value();
      throw;
    }
  });
  EXPECT_THAT(errors[1], HasSubstr("receiving the output of stage 0, microbatch 0"));
  if (GetParam().messages == ExchangeMethod::kCopyEngine) {
    EXPECT_THAT(errors[1], HasSubstr("rank 1 has waited 0.3 s for the output of stage 0, microbatch 0 from rank 0"));
  }
}

TEST_P(ExecutorFaults, A_rank_whose_program_has_returned_is_named) {
  if (GetParam().backend == RankBackend::kGloo) GTEST_SKIP() << "a matter of threads here";
  const auto errors = errors_of(GetParam(), [&](World& world) {
    const DistContext context = context_of(world);
    StageLinks links(context, StagePlacement::loop(2, 1), GetParam().links());
    if (world.rank() == 0) return world.leave();
    (void)links.receive({.source = {0}, .target = {1}, .microbatch = {0}}, {at::empty({1}, at::kDouble)});
  });
  EXPECT_THAT(errors[1], HasSubstr("whose program has returned"));
}

TEST_P(ExecutorFaults, Too_few_microbatches_for_a_schedule_are_refused_on_all_ranks) {
  const auto errors = errors_of(GetParam(), [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, DualPipeVScheduleConfig{}, {.num_microbatches = 3}, GetParam().links());
    part.run();
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("dual_pipe_v"));
}

}  // namespace
}  // namespace d9d::test::pipeline_executor_test
