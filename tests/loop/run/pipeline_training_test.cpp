// A model in pipeline stages trains as the model in one piece on one rank does: what is logged, and all parameters, in
// float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/model_state/io/huggingface_directory.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/turns.h"

namespace d9d::test::pipeline_training_test {
namespace {

using pipeline::error_of;
using pipeline::expect_same;
using pipeline::folder;
using pipeline::in_one_piece;
using pipeline::PipelineJob;
using pipeline::Rows;
using pipeline::schedules;
using pipeline::train;
using pipeline::Trained;
using ::testing::HasSubstr;

TEST(PipelineTraining, Each_schedule_on_one_two_and_four_ranks_trains_as_one_piece_does) {
  for (const PipelineScheduleConfig& schedule : schedules()) {
    for (const std::int64_t num_ranks : {1, 2, 4}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, " on ", num_ranks));
      expect_same(train({.mesh = {.pipeline_parallel = num_ranks}, .schedule = schedule}), in_one_piece());
    }
  }
}

TEST(PipelineTraining, Sharded_and_replicated_stages_train_as_one_piece_does) {
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  const FsdpConfig always{.reshard_after_forward = ReshardAfterForward::kAlways};
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{}), PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}),
        PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    SCOPED_TRACE(schedule_of(schedule).name);
    const auto expect_with = [&](const DeviceMeshParameters& mesh, const FsdpConfig& fsdp) {
      expect_same(train({.mesh = mesh, .schedule = schedule, .fsdp = fsdp}), in_one_piece());
    };
    expect_with({.pipeline_parallel = 2, .data_parallel_replicate = 2}, {});
    expect_with({.pipeline_parallel = 2, .data_parallel_shard = 2}, {});
    expect_with({.pipeline_parallel = 2, .data_parallel_shard = 2}, once);
    expect_with({.pipeline_parallel = 2, .data_parallel_shard = 2}, always);
  }
  expect_same(train({.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2, .data_parallel_shard = 2},
                     .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2},
                     .fsdp = once}),
              in_one_piece());
}

TEST(PipelineTraining, Stages_with_shared_sequences_train_as_one_piece_does) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_shard = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_replicate = 2}}) {
    expect_same(train({.mesh = mesh, .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2}}), in_one_piece());
  }
}

// Every other job checkpoints its layers; the layout tests run each with both.
TEST(PipelineTraining, Tensor_parallel_stages_of_each_schedule_train_as_one_piece_does) {
  std::size_t number = 0;
  test::Turns turns(2);
  for (const PipelineScheduleConfig& schedule : schedules()) {
    for (const DeviceMeshParameters& mesh :
         {DeviceMeshParameters{.tensor_parallel = 2},
          DeviceMeshParameters{.pipeline_parallel = 2, .tensor_parallel = 2},
          DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2, .tensor_parallel = 2}}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, " on ", mesh.world_size()));
      const bool checkpoints = number++ % 2 == 1;
      if (!turns.has_next()) continue;
      expect_same(train({.mesh = mesh, .schedule = schedule, .checkpoints = checkpoints}), in_one_piece());
    }
  }
}

TEST(PipelineTraining, Refuses_positions_that_tensor_parallel_ranks_cannot_share) {
  EXPECT_THAT(error_of({.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}, .rows = Rows::kDocuments}),
              HasSubstr("expected positions in a multiple of the tensor-parallel ranks = 2"));
}

TEST(PipelineTraining, Stages_with_experts_and_an_auxiliary_loss_train_as_one_piece_does) {
  const Trained expected = train({.has_experts = true});
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.pipeline_parallel = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2}}) {
    expect_same(train({.mesh = mesh, .schedule = ZeroBubbleVScheduleConfig{}, .has_experts = true}), expected);
  }
}

// Every stage gets the ends of the documents.
TEST(PipelineTraining, Stages_of_packed_documents_train_as_one_piece_on_one_document_a_row_does) {
  for (const bool has_experts : {false, true}) {
    const Trained expected = train({.has_experts = has_experts, .rows = Rows::kDocuments});
    const auto expect_with = [&](const DeviceMeshParameters& mesh, const PipelineScheduleConfig& schedule) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, has_experts ? ", experts" : ""));
      expect_same(train({.mesh = mesh, .schedule = schedule, .has_experts = has_experts, .rows = Rows::kPacked}),
                  expected);
    };
    expect_with({}, {});
    expect_with({.data_parallel_shard = 2}, {});
    expect_with({.pipeline_parallel = 4}, OneFOneBScheduleConfig{});
    expect_with({.pipeline_parallel = 2}, OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true});
    expect_with({.pipeline_parallel = 2, .data_parallel_shard = 2}, ZeroBubbleVScheduleConfig{});
  }
}

TEST(PipelineTraining, Checkpointed_layers_and_a_frozen_stage_train_as_one_piece_does) {
  const Trained expected = train({.freezes_first = true});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.pipeline_parallel = 4},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    expect_same(train({.mesh = mesh, .schedule = OneFOneBScheduleConfig{}, .checkpoints = true, .freezes_first = true}),
                expected);
  }
}

// Schedules with deferred weight gradients, combined with recomputed layers, shards and experts.
TEST(PipelineTraining, Split_backwards_train_as_one_piece_does) {
  const Trained dense = in_one_piece(), with_experts = train({.has_experts = true});
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  test::Turns turns(3);
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{.zero_bubble = true}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true}),
        PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    for (const bool has_experts : {false, true}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, has_experts ? " with experts" : ""));
      const auto expect = [&](const DeviceMeshParameters& mesh, const FsdpConfig& fsdp) {
        if (!turns.has_next()) return;
        expect_same(
            train({.mesh = mesh, .schedule = schedule, .fsdp = fsdp, .checkpoints = true, .has_experts = has_experts}),
            has_experts ? with_experts : dense);
      };
      const std::int64_t expert_parallel = has_experts ? 2 : 1;
      expect({.pipeline_parallel = 4}, {});
      expect({.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = expert_parallel}, {});
      expect({.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = expert_parallel}, once);
      expect({.pipeline_parallel = 2, .data_parallel_replicate = 2}, {});
    }
  }
}

TEST(PipelineTraining, Split_backwards_past_frozen_layers_train_as_one_piece_does) {
  const Trained expected = train({.freezes_first = true});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.pipeline_parallel = 4},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    expect_same(
        train({.mesh = mesh, .schedule = ZeroBubbleVScheduleConfig{}, .checkpoints = true, .freezes_first = true}),
        expected);
  }
}

TEST(PipelineTraining, Stages_over_sockets_train_as_one_piece_does) {
  expect_same(train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                     .schedule = DualPipeVScheduleConfig{},
                     .backend = RankBackend::kGloo}),
              in_one_piece());
}

TEST(PipelineTraining, Stages_are_exported_as_the_model_in_one_piece_is) {
  std::filesystem::remove_all(folder() / "export");
  PipelineJob job{.mesh = {.pipeline_parallel = 2},
                  .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2},
                  .export_to = "export"};
  EXPECT_THAT(error_of(job), HasSubstr("the mapper of the whole model in ModelProvider::prepare_export"));
  for (const auto& [name, tensor] : in_one_piece().parameters) job.exported.insert(name);
  (void)train(job);
  const std::vector<std::string> names = HuggingFaceDirectory(folder() / "export").names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), job.exported);
}

TEST(PipelineTraining, Names_stage_microbatch_and_step_of_what_throws) {
  const PipelineJob job{.mesh = {.pipeline_parallel = 2},
                        .on_loss = [](LossResult&) { throw UsageError("[test] planted."); }};
  EXPECT_THAT(error_of(job), HasSubstr("[test] planted. (in compute_loss, stage 1, microbatch 0 of step 0"));
}

TEST(PipelineTraining, Says_what_is_not_built) {
  EXPECT_THAT(error_of({.schedule = InferenceScheduleConfig{}}), HasSubstr("training without a backward pass"));
  EXPECT_THAT(
      error_of({.mesh = {.pipeline_parallel = 4, .data_parallel_replicate = 2}, .schedule = DualPipeVScheduleConfig{}}),
      HasSubstr("dual_pipe_v"));
}

}  // namespace
}  // namespace d9d::test::pipeline_training_test
