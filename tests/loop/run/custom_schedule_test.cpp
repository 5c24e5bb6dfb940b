// A custom pipeline schedule trains as one rank does. A schedule that differs between ranks, is given in addition to a
// configured one, or does not train is an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/pipeline_schedule/limited_schedule.h"
#include "tests/loop/run/pipeline_job.h"
#include "tests/support/io_faults.h"

namespace d9d::test::custom_schedule_test {
namespace {

using pipeline::expect_same;
using pipeline::in_one_piece;
using pipeline::PipelineJob;
using pipeline::train;
using ::testing::HasSubstr;

// The stages lie there and back over two ranks, as 0 1 1 0. Runs all forwards of a stage, then all backwards; those of
// stage 2 are split into I and W.
PipelineSchedule there_and_back(const std::string& name = "there and back", bool has_backward = true) {
  const auto order = [=](const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
    RankProgram program;
    std::vector<StageIndex> own = stages.stages_of(rank);
    for (const StageIndex stage : own) {
      for (std::int64_t i = 0; i < num_microbatches; ++i) program.emplace_back(ForwardAction{stage, {i}});
    }
    std::ranges::reverse(own);
    for (const StageIndex stage : own) {
      if (!has_backward) continue;
      for (std::int64_t i = 0; i < num_microbatches; ++i) {
        if (stage.value != 2) program.emplace_back(BackwardAction{stage, {i}});
        if (stage.value == 2) program.emplace_back(BackwardInputAction{stage, {i}});
      }
      for (std::int64_t i = 0; stage.value == 2 && i < num_microbatches; ++i) {
        program.emplace_back(BackwardWeightAction{stage, {i}});
      }
    }
    return program;
  };
  return {.name = name,
          .placement =
              [](std::int64_t num_ranks) {
                return num_ranks == 1 ? StagePlacement::loop(1, 4) : StagePlacement({0, 1, 1, 0});
              },
          .order = order};
}

std::string error_of(const PipelineJob& job) {
  return test::message_of<ConfigError>([&] { (void)train(job); });
}

TEST(CustomSchedule, Trains_as_one_rank_does) {
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{}, DeviceMeshParameters{.pipeline_parallel = 2},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    expect_same(train({.mesh = mesh, .custom_schedule = [](std::int64_t) { return there_and_back(); }}),
                in_one_piece());
  }
}

TEST(CustomSchedule, Of_the_example_trains_as_one_rank_does) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.pipeline_parallel = 2}, DeviceMeshParameters{.pipeline_parallel = 4},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    for (const std::int64_t limit : {1, 2, 4}) {
      expect_same(train({.mesh = mesh, .custom_schedule = [&](std::int64_t) { return limited_schedule(limit); }}),
                  in_one_piece());
    }
  }
}

TEST(CustomSchedule, Which_differs_between_ranks_is_refused) {
  const DeviceMeshParameters mesh{.pipeline_parallel = 2};
  const auto by_name = [](std::int64_t rank) { return there_and_back(cat("of rank ", rank)); };
  EXPECT_THAT(
      error_of({.mesh = mesh, .custom_schedule = by_name}),
      HasSubstr(R"(expected one pipeline schedule on all ranks, got name = "of rank 0" on rank 0 and "of rank 1")"));
  const auto by_placement = [](std::int64_t rank) {
    PipelineSchedule schedule = there_and_back();
    if (rank == 1) schedule.placement = [](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, 2); };
    return schedule;
  };
  EXPECT_THAT(error_of({.mesh = mesh, .custom_schedule = by_placement}),
              HasSubstr("got rank of stage 2 = 1 on rank 0 and 0 on rank 1"));
}

// All F, then all B, from the last microbatch to the first if is_reversed, otherwise from the first.
PipelineSchedule forwards_first(const std::vector<std::int64_t>& rank_of_stage, bool is_reversed) {
  const auto order = [=](const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
    RankProgram program;
    const auto number = [&](std::int64_t i) { return MicrobatchIndex{is_reversed ? num_microbatches - 1 - i : i}; };
    for (const StageIndex stage : stages.stages_of(rank)) {
      for (std::int64_t i = 0; i < num_microbatches; ++i) program.emplace_back(ForwardAction{stage, number(i)});
      for (std::int64_t i = 0; i < num_microbatches; ++i) program.emplace_back(BackwardAction{stage, number(i)});
    }
    return program;
  };
  return {.name = "mine", .placement = [=](std::int64_t) { return StagePlacement(rank_of_stage); }, .order = order};
}

TEST(CustomSchedule, Of_one_stage_trains_as_one_rank_does) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_replicate = 2},
        DeviceMeshParameters{.tensor_parallel = 2}, DeviceMeshParameters{.data_parallel_shard = 2}}) {
    for (const bool is_reversed : {true, false}) {
      const auto own = [&](std::int64_t) { return forwards_first({0}, is_reversed); };
      expect_same(train({.mesh = mesh, .custom_schedule = own}), in_one_piece());
    }
  }
}

TEST(CustomSchedule, Whose_order_differs_between_ranks_of_other_pipelines_is_refused) {
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.pipeline_parallel = 2, .tensor_parallel = 2},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_shard = 2},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    const auto own = [](std::int64_t rank) { return forwards_first({0, 1}, rank % 2 == 0); };
    EXPECT_THAT(error_of({.mesh = mesh, .custom_schedule = own}),
                HasSubstr("expected 'mine' to give all ranks the same program of"));
  }
}

TEST(CustomSchedule, That_places_stages_elsewhere_when_asked_again_keeps_the_first_places) {
  const auto own = [](std::int64_t) {
    PipelineSchedule schedule = there_and_back();
    schedule.placement = [count = std::make_shared<int>(0)](std::int64_t) {
      return (*count)++ == 0 ? StagePlacement({0, 1, 1, 0}) : StagePlacement({1, 0});
    };
    return schedule;
  };
  expect_same(train({.mesh = {.pipeline_parallel = 2}, .custom_schedule = own}), in_one_piece());
}

TEST(CustomSchedule, Beside_one_of_the_configuration_is_refused) {
  const auto own = [](std::int64_t) { return there_and_back(); };
  const std::string error = error_of({.schedule = AutoScheduleConfig{}, .custom_schedule = own});
  EXPECT_THAT(error, HasSubstr(R"(trainer.pipelining.schedule = {"schedule":"auto")"));
  EXPECT_THAT(error, HasSubstr("'there and back' of TrainerParts::pipeline_schedule. Leave one of them out."));
}

TEST(CustomSchedule, Without_a_backward_is_refused) {
  const auto own = [](std::int64_t) { return there_and_back("forwards", /*has_backward=*/false); };
  EXPECT_THAT(error_of({.mesh = {.pipeline_parallel = 2}, .custom_schedule = own}),
              HasSubstr("expected a pipeline schedule with a backward of each forward, got 'forwards'"));
}

}  // namespace
}  // namespace d9d::test::custom_schedule_test
