// A model in pipeline stages writes what it writes in one piece, whatever its schedule and layout, and trains on after
// it.
#include "d9d/loop/auto/staged_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/linear/linear.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/io_faults.h"

namespace d9d::test::staged_decoder_test {
namespace {

using pipeline::PipelineJob;
using pipeline::schedules;
using pipeline::train;
using ::testing::HasSubstr;

const std::vector<std::int64_t> kPrompt = {3, 1, 4};

void expect_writes_as_one_piece(PipelineJob job) {
  PipelineJob whole{.has_experts = job.has_experts, .ties_embeddings = job.ties_embeddings};
  whole.prompt = job.prompt = kPrompt;
  const auto expected = train(whole).written;
  EXPECT_EQ(expected.size(), 6U);
  EXPECT_EQ(train(job).written, expected) << schedule_of(job.schedule).name;
}

TEST(StagedDecoder, Of_each_schedule_writes_as_one_piece) {
  for (const PipelineScheduleConfig& schedule : schedules()) {
    expect_writes_as_one_piece({.mesh = {.pipeline_parallel = 2}, .schedule = schedule, .ties_embeddings = true});
  }
  expect_writes_as_one_piece({.mesh = {.pipeline_parallel = 4}, .schedule = ZeroBubbleVScheduleConfig{}});
  expect_writes_as_one_piece({.schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 4}});
}

TEST(StagedDecoder, Of_each_layout_writes_as_one_piece) {
  const PipelineScheduleConfig in_v = DualPipeVScheduleConfig{};
  expect_writes_as_one_piece({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = in_v});
  expect_writes_as_one_piece({.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2}, .schedule = in_v});
  expect_writes_as_one_piece({.mesh = {.pipeline_parallel = 2, .context_parallel_shard = 2}, .schedule = in_v});
  expect_writes_as_one_piece({.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}, .schedule = in_v});
  expect_writes_as_one_piece({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2},
                              .schedule = in_v,
                              .has_experts = true,
                              .backend = RankBackend::kGloo});
}

TEST(StagedDecoder, Refuses_stages_that_are_no_decoder) {
  const DistContext context({.world = one_rank_world()});
  const auto other = std::make_shared<Linear>(LinearConfig{.in_features = 2, .out_features = 2});
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { (void)staged_decoder(context, StagePlacement::loop(1, 1), {other}); }),
      HasSubstr("DecoderForCausalLM"));
}

}  // namespace
}  // namespace d9d::test::staged_decoder_test
