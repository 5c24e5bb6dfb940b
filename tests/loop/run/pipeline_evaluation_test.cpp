// Evaluation while a job trains on several ranks: every layout has the losses of one rank, and trains bit for bit as
// without evaluation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::pipeline_evaluation_test {
namespace {

using pipeline::PipelineJob;
using pipeline::train;
using pipeline::Trained;
using pipeline::without_evaluation;

// The second pack has fewer microbatches than some layouts have data-parallel ranks, and the first an odd number that
// no schedule of a V would train on.
const std::vector<std::int64_t> kPacks = {5, 1, 3};

const Trained& on_one_rank(bool has_experts) {
  static const Trained dense = train({.evaluated = kPacks});
  static const Trained experts = train({.has_experts = true, .evaluated = kPacks});
  return has_experts ? experts : dense;
}

void expect_evaluation(PipelineJob job) {
  const Trained alone = train(job);
  job.evaluated = kPacks;
  const Trained evaluated = train(job);
  pipeline::expect_same(evaluated, on_one_rank(job.has_experts));
  pipeline::expect_equal(without_evaluation(evaluated), alone);
}

TEST(PipelineEvaluation, Logs_a_loss_at_the_start_and_after_each_step) {
  const auto series = pipeline::series_of(on_one_rank(false));
  ASSERT_EQ(series.at("validation/loss").size(), 1 + pipeline::kNumSteps);
  EXPECT_NE(series.at("validation/loss")[0], series.at("validation/loss")[1]);
}

TEST(PipelineEvaluation, Of_every_schedule) {
  for (const PipelineScheduleConfig& schedule : pipeline::schedules()) {
    SCOPED_TRACE(schedule_of(schedule).name);
    expect_evaluation({.mesh = {.pipeline_parallel = 2}, .schedule = schedule, .ties_embeddings = false});
  }
}

TEST(PipelineEvaluation, Of_replicas_and_shards_with_unequally_many_microbatches) {
  expect_evaluation({.mesh = {.data_parallel_replicate = 4}});
  expect_evaluation({.mesh = {.data_parallel_shard = 2}});
  expect_evaluation(
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
       .schedule = DualPipeVScheduleConfig{},
       .fsdp = {.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true}});
}

TEST(PipelineEvaluation, Gathers_the_units_of_a_pipeline_once) {
  PipelineJob job{.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                  .schedule = OneFOneBScheduleConfig{},
                  .fsdp = {.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true}};
  const std::int64_t of_a_step = train(job).num_gathers / pipeline::kNumSteps;
  job.evaluated = kPacks;
  EXPECT_EQ(train(job).num_gathers, of_a_step * (pipeline::kNumSteps + 1 + pipeline::kNumSteps));
}

TEST(PipelineEvaluation, Of_shards_that_are_gathered_by_collectives) {
  expect_evaluation({.mesh = {.data_parallel_shard = 2}, .backend = RankBackend::kGloo});
}

TEST(PipelineEvaluation, Of_sequences_and_matrices_that_ranks_share) {
  expect_evaluation({.mesh = {.context_parallel_shard = 2}});
  expect_evaluation({.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}});
}

TEST(PipelineEvaluation, Of_experts_on_other_ranks) {
  expect_evaluation(
      {.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}, .checkpoints = true, .has_experts = true});
}

TEST(PipelineEvaluation, Of_a_tied_embedding_in_a_v) {
  PipelineJob job{.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}, .ties_embeddings = true};
  const Trained alone = train(job);
  job.evaluated = kPacks;
  const Trained evaluated = train(job);
  pipeline::expect_same(evaluated, train({.ties_embeddings = true, .evaluated = kPacks}));
  pipeline::expect_equal(without_evaluation(evaluated), alone);
}

}  // namespace
}  // namespace d9d::test::pipeline_evaluation_test
