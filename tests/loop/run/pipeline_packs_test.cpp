// Steps whose packs differ in the number of microbatches, in their lengths, and in which microbatches have labels.
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::pipeline_packs_test {
namespace {

using pipeline::expect_same;
using pipeline::microbatch;
using pipeline::PipelineJob;
using pipeline::train;

// Steps of 4, 10, 2, 6, 2, 4 microbatches with 4, 6 or 8 positions.
std::vector<TokenBatch> of_changing_number(std::int64_t step) {
  constexpr std::array<std::int64_t, 6> kNumbers = {4, 10, 2, 6, 2, 4};
  std::vector<TokenBatch> pack;
  for (std::int64_t i = 0; i < kNumbers[static_cast<std::size_t>(step) % kNumbers.size()]; ++i) {
    pack.push_back(microbatch(step, i));
  }
  return pack;
}

// No label counts in the first half of the microbatches of even steps, in every third microbatch, and in step 1.
std::vector<TokenBatch> with_few_labels(std::int64_t step) {
  std::vector<TokenBatch> pack;
  for (std::int64_t i = 0; i < 8; ++i) {
    pack.push_back(microbatch(step, i));
    if ((step % 2 == 0 && i < 4) || i % 3 == 2 || step == 1) pack.back().labels.fill_(kIgnoreIndex);
  }
  return pack;
}

void expect_same_on_each_mesh(PipelineJob job, const std::vector<PipelineScheduleConfig>& schedules) {
  const auto expected = train(job);
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_replicate = 2}, DeviceMeshParameters{.pipeline_parallel = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_replicate = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    for (const PipelineScheduleConfig& schedule : schedules) {
      if (mesh.pipeline_parallel == 1 && &schedule != &schedules.front()) continue;
      SCOPED_TRACE(cat(schedule_of(schedule).name, " on ", mesh.pipeline_parallel, " x ", mesh.data_parallel_replicate,
                       " x ", mesh.data_parallel_shard));
      job.mesh = mesh;
      job.schedule = schedule;
      expect_same(train(job), expected);
    }
  }
}

TEST(PipelinePacks, Of_another_number_of_microbatches_in_each_step_train_as_on_one_rank) {
  expect_same_on_each_mesh(
      {.microbatches = of_changing_number, .num_steps = 6},
      {OneFOneBScheduleConfig{}, OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true},
       ZeroBubbleVScheduleConfig{}});
}

TEST(PipelinePacks, Whose_labels_do_not_count_in_some_microbatches_ranks_or_steps_train_as_on_one_rank) {
  expect_same_on_each_mesh({.microbatches = with_few_labels},
                           {OneFOneBScheduleConfig{}, ZeroBubbleVScheduleConfig{}, DualPipeVScheduleConfig{}});
  expect_same_on_each_mesh({.has_experts = true, .microbatches = with_few_labels}, {ZeroBubbleVScheduleConfig{}});
}

}  // namespace
}  // namespace d9d::test::pipeline_packs_test
