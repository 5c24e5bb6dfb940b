// The errors on the ranks of a pipeline when one of them fails, expects something else, or does not take part.
#include <future>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/compute_order.h"

#include "tests/pipelining/executor/toy_part.h"

namespace d9d::test::executor_faults_test {
namespace {

using ::testing::HasSubstr;

// The text of the exception that each rank throws; empty if it throws none.
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
  } catch (const std::exception&) {  // it is one of `errors`
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
    const std::string place = cat(in_forward ? "forward" : "backward", " of stage 1, microbatch 2, action ");
    EXPECT_THAT(errors[1], HasSubstr("the toy breaks (" + place));
    EXPECT_THAT(errors[1], HasSubstr(in_forward ? " >1F2< " : " >1B2< "));
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

// The products that an I has deferred are never added to the gradients of the weights, neither in this step nor in the
// next.
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
  EXPECT_THAT(errors[0], HasSubstr("expected stage 0 to return the tensors that it announced, "
                                   "Float [2, 5], got Double [2, 5] for "
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

// This happens if each rank orders computations by its own measurements.
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
}  // namespace d9d::test::executor_faults_test
