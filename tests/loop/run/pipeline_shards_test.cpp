// Sharded stages: how often their units are gathered and reduced in a step, and how much memory a step keeps.
#include <algorithm>
#include <mutex>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/memory_peak.h"

namespace d9d::test::pipeline_shards_test {
namespace {

using pipeline::expect_same;
using pipeline::in_one_piece;
using pipeline::kNumMicrobatches;
using pipeline::kNumSteps;
using pipeline::PipelineJob;
using pipeline::schedules;
using pipeline::train;
using pipeline::Trained;
using ::testing::HasSubstr;

constexpr std::int64_t kNumShards = 2;
constexpr std::int64_t kNumUnits = 1 + 8 + 1;  // the embedding, layers, norm and head
constexpr std::int64_t kOnce = kNumUnits * kNumShards * kNumSteps;
constexpr std::int64_t kMicrobatchesOfRank = kNumMicrobatches / kNumShards;

TEST(PipelineShards, Each_unit_is_gathered_and_reduced_once_a_step_whichever_schedule_runs) {
  std::vector<PipelineScheduleConfig> all = schedules();
  all.emplace_back(OneFOneBScheduleConfig{.zero_bubble = true});
  all.emplace_back(OneFOneBScheduleConfig{.num_stages_per_rank = 2});
  for (const PipelineScheduleConfig& schedule : all) {
    for (const bool checkpoints : {false, true}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, checkpoints ? ", checkpoints" : ""));
      const Trained trained = train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = kNumShards},
                                     .schedule = schedule,
                                     .checkpoints = checkpoints});
      EXPECT_EQ(trained.num_gathers, kOnce);
      EXPECT_EQ(trained.num_reductions, kOnce);
      EXPECT_THAT(trained.log, HasSubstr("are gathered once a step by"));
      expect_same(trained, in_one_piece());
    }
  }
}

TEST(PipelineShards, Are_gathered_and_reduced_once_by_copies_too) {
  const ExchangeMethod copies = ExchangeMethod::kCopyEngine;
  const Trained trained = train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = kNumShards},
                                 .schedule = ZeroBubbleVScheduleConfig{},
                                 .fsdp = {.gather = copies, .reduce = copies}});
  EXPECT_EQ(trained.num_gathers, kOnce);
  EXPECT_EQ(trained.num_reductions, kOnce);
  EXPECT_THAT(trained.log, HasSubstr("are gathered once a step by copies"));
  expect_same(trained, in_one_piece());
}

TEST(PipelineShards, Do_what_the_configuration_says_where_it_says_something) {
  const PipelineJob pipeline{.mesh = {.pipeline_parallel = 2, .data_parallel_shard = kNumShards},
                             .schedule = OneFOneBScheduleConfig{}};
  PipelineJob job = pipeline;
  job.fsdp.reduce_on_last_microbatch = false;
  const Trained reduced_often = train(job);
  EXPECT_EQ(reduced_often.num_gathers, kOnce);
  EXPECT_EQ(reduced_often.num_reductions, kOnce * kMicrobatchesOfRank);
  job = pipeline;
  job.fsdp.reshard_after_forward = ReshardAfterForward::kAlways;
  const Trained gathered_often = train(job);
  EXPECT_GT(gathered_often.num_gathers, kOnce * kMicrobatchesOfRank);
  EXPECT_EQ(gathered_often.num_reductions, kOnce);
}

TEST(PipelineShards, Of_a_model_in_one_piece_are_gathered_and_reduced_in_each_microbatch) {
  const Trained trained = train({.mesh = {.data_parallel_shard = kNumShards}});
  EXPECT_GT(trained.num_gathers, kOnce * kMicrobatchesOfRank);
  EXPECT_EQ(trained.num_reductions, kOnce * kMicrobatchesOfRank);
}

struct Memory {
  std::int64_t peak = 0;
  std::int64_t slices = 0;  // slices of gradients on a rank
};

// With microbatches of 8 positions: measured from the first loss of the job to the first loss of the third step, on the
// rank that keeps the most.
Memory memory_of(std::int64_t num_microbatches) {
  std::mutex mutex;
  Memory most;
  const auto of_step = [=](std::int64_t step) {
    std::vector<TokenBatch> pack;
    for (std::int64_t i = 0; i < kNumShards * num_microbatches; ++i) {
      pack.push_back(pipeline::microbatch(3 * step, 3 * i));
    }
    return pack;
  };
  const auto on_loss = [&](LossResult&) {
    thread_local std::optional<MemoryPeak> memory;
    thread_local std::int64_t num_losses = 0;
    if (num_losses == 0) memory.emplace();
    if (num_losses++ != 2 * num_microbatches) return;
    const std::lock_guard lock(mutex);
    most.peak = std::max(most.peak, memory->peak_bytes());
    memory.reset();
  };
  const Trained trained =
      train({.mesh = {.data_parallel_shard = kNumShards}, .microbatches = of_step, .on_loss = on_loss});
  for (const auto& [name, parameter] : trained.parameters) {
    most.slices += static_cast<std::int64_t>(parameter.nbytes()) / kNumShards;
  }
  return most;
}

// A single microbatch allocates its slices of gradients while it frees its activations. In steps of several, the later
// ones find all slices allocated, from the first reductions to the end of the step.
TEST(PipelineShards, Of_a_model_in_one_piece_keep_the_activations_of_one_microbatch) {
  constexpr double kInputs = 1.05;  // allowance for the inputs of all microbatches
  const Memory of_one = memory_of(1), of_two = memory_of(2), of_eight = memory_of(8);
  EXPECT_GT(of_one.peak, 0);
  EXPECT_GT(of_one.slices, 0);
  EXPECT_LE(of_two.peak, of_one.peak + of_one.slices);
  EXPECT_LE(static_cast<double>(of_eight.peak), kInputs * static_cast<double>(of_two.peak));
}

}  // namespace
}  // namespace d9d::test::pipeline_shards_test
