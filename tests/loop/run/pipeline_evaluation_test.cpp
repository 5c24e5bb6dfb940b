// Evaluation while a job trains on several ranks: every layout has the losses of one rank, and trains bit for bit as
// without evaluation.
#include <cstdlib>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"
#include "tests/loop/run/thirteen_documents.h"
#include "tests/support/turns.h"

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

// Packs of which some hold several documents, some one, and of which no rank has as many as the others.
TEST(PipelineEvaluation, Of_packed_documents_whose_positions_ranks_share) {
  const DataConfig documents = pipeline::thirteen_documents(PackedViewConfig{}, ShardIndexingMode::kSequential, 1);
  const Trained expected = train({.evaluated_data = documents});
  EXPECT_EQ(pipeline::series_of(expected).at("validation/loss").size(), 1 + pipeline::kNumSteps);
  std::vector<PipelineJob> jobs;
  for (const ContextAttention attention : {ContextAttention::kAuto, ContextAttention::kGathered}) {
    jobs.push_back({.mesh = {.context_parallel_shard = 2}, .context_parallel = {.attention = attention}});
  }
  jobs.push_back({.mesh = {.context_parallel_replicate = 2}});
  jobs.push_back({.mesh = {.data_parallel_replicate = 2, .context_parallel_shard = 2}});
  jobs.push_back({.mesh = {.context_parallel_shard = 2, .tensor_parallel = 2}});
  jobs.push_back({.mesh = {.pipeline_parallel = 2, .context_parallel_shard = 2}, .schedule = OneFOneBScheduleConfig{}});
  for (PipelineJob job : test::in_turn(jobs, 2)) {
    SCOPED_TRACE(cat(job.mesh.world_size(), " ranks, attention ", enum_name(job.context_parallel.attention)));
    const Trained alone = train(job);
    job.evaluated_data = documents;
    const Trained evaluated = train(job);
    pipeline::expect_same(evaluated, expected);
    pipeline::expect_equal(without_evaluation(evaluated), alone);
  }
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

// Draws layouts, and packs of any sizes. With RC_PARAMS in the environment it draws many, others in each run.
TEST(PipelineEvaluation, Of_layouts_that_are_drawn) {
  const bool is_long = std::getenv("RC_PARAMS") != nullptr;
  std::mt19937_64 random(is_long ? std::random_device()() : 40);
  const auto any_of = [&]<class T>(const std::vector<T>& values) { return values[random() % values.size()]; };
  for (int i = 0; i < (is_long ? 200 : 4); ++i) {
    PipelineJob job{.mesh = {.pipeline_parallel = any_of(std::vector<std::int64_t>{1, 2})},
                    .schedule = GPipeScheduleConfig{},
                    .checkpoints = any_of(std::vector{false, true}),
                    .has_experts = any_of(std::vector{false, true}),
                    .ties_embeddings = any_of(std::vector{false, true})};
    if (job.mesh.pipeline_parallel == 2) job.schedule = any_of(pipeline::schedules());
    const std::int64_t degree = any_of(std::vector<std::int64_t>{1, 2});
    (any_of(std::vector{false, true}) ? job.mesh.data_parallel_replicate : job.mesh.data_parallel_shard) = degree;
    if (any_of(std::vector{false, true})) {
      job.fsdp = {.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
    }
    if (!job.has_experts && degree == 1 && any_of(std::vector{false, true})) job.mesh.context_parallel_shard = 2;
    std::vector<std::int64_t> packs;
    for (std::uint64_t pack = 0; pack <= random() % 3; ++pack) {
      packs.push_back(static_cast<std::int64_t>(1 + random() % 7));
    }
    SCOPED_TRACE(cat("draw ", i, ": pp ", job.mesh.pipeline_parallel, ", ", schedule_of(job.schedule).name, ", dpr ",
                     job.mesh.data_parallel_replicate, ", dps ", job.mesh.data_parallel_shard, ", cps ",
                     job.mesh.context_parallel_shard, ", experts ", job.has_experts, ", tied ", job.ties_embeddings));
    const Trained alone = train(job);
    job.evaluated = packs;
    const Trained evaluated = train(job);
    pipeline::expect_same(
        evaluated, train({.has_experts = job.has_experts, .ties_embeddings = job.ties_embeddings, .evaluated = packs}));
    pipeline::expect_equal(without_evaluation(evaluated), alone);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace d9d::test::pipeline_evaluation_test
