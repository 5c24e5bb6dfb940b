// A model in pipeline stages generates the same text as in one piece, for every schedule and layout, and continues to
// train afterwards.
#include "d9d/loop/language_model/staged_decoder.h"

#include <ATen/core/grad_mode.h>
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

std::shared_ptr<DecoderForCausalLM> stage_of(std::int64_t index, std::int64_t num_stages) {
  const DecoderStageOptions options{.stage = {.num_stages = num_stages, .current_stage = index}};
  const auto model =
      make_decoder_for_causal_lm(make_module<Qwen3DenseModel>(small_parameters<Qwen3DenseParameters>({}), options));
  model->materialize(at::kCPU);
  model->reset_parameters(0);
  return model.shared();
}

TEST(StagedDecoder, Refuses_stages_that_lie_elsewhere) {
  const DistContext context({.world = one_rank_world()});
  const auto message = [&](const std::vector<std::shared_ptr<Module>>& stages) {
    return test::message_of<ConfigError>([&] { (void)staged_decoder(context, StagePlacement::loop(1, 2), stages); });
  };
  EXPECT_THAT(message({stage_of(1, 2), stage_of(0, 2)}),
              HasSubstr("expected the stages 0 of 2 1 of 2, got the stages 1 of 2 0 of 2"));
  EXPECT_THAT(message({stage_of(0, 2)}), HasSubstr("got the stages 0 of 2."));
  EXPECT_THAT(message({}), HasSubstr("got no stages"));
  EXPECT_THAT(message({nullptr}), HasSubstr("DecoderForCausalLM"));
}

// The program writes into the embedding, of which the last stage has a copy.
TEST(StagedDecoder, Reads_what_the_program_has_written_into_a_tied_parameter) {
  const auto write = [](Module& module) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : module.named_parameters()) {
      if (name.find("embed") != std::string::npos) parameter->stored().mul_(-3);
    }
  };
  PipelineJob job{.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}, .ties_embeddings = true};
  PipelineJob whole{.ties_embeddings = true};
  job.prompt = whole.prompt = kPrompt;
  job.on_trained = whole.on_trained = write;
  const auto written = train(whole).written;
  EXPECT_EQ(train(job).written, written);
  job.on_trained = nullptr;
  EXPECT_NE(train(job).written, written);
}

}  // namespace
}  // namespace d9d::test::staged_decoder_test
