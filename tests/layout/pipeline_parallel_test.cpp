// Every schedule of a pipeline, alone and with data, sharded, tensor, context and expert parallelism, and jobs that are
// saved on some stages and continue on others.
#include <gtest/gtest.h>

#include "tests/layout/fuzz_params.h"
#include "tests/layout/layout_case.h"
#include "tests/support/decoder_families.h"

namespace d9d::test::pipeline_parallel_test {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kOneFOneB,   Schedule::kGPipe,     Schedule::kInterleaved,
                                   Schedule::kZeroBubble, Schedule::kLoopedBfs, Schedule::kZeroBubbleV,
                                   Schedule::kDualPipeV};

void expect_no_fault(const LayoutCase& drawn) {
  const std::string fault = fault_of(drawn);
  EXPECT_TRUE(fault.empty()) << to_source(drawn) << "\n" << fault;
}

// All combinations where RC_PARAMS is set, as by `make test-full`; otherwise one in nineteen.
TEST(PipelineParallel, Trains_as_on_one_rank) {
  const std::vector<DeviceMeshParameters> meshes = {
      {},
      {.pipeline_parallel = 2},
      {.pipeline_parallel = 4},
      {.pipeline_parallel = 2, .data_parallel_replicate = 2},
      {.pipeline_parallel = 2, .data_parallel_shard = 2},
      {.pipeline_parallel = 2, .data_parallel_replicate = 2, .data_parallel_shard = 2},
      {.pipeline_parallel = 4, .data_parallel_shard = 2, .expert_parallel = 2},
      {.pipeline_parallel = 2, .context_parallel_shard = 2}};
  std::size_t number = 0;
  for (const DeviceMeshParameters& mesh : meshes) {
    for (const DecoderFamily& family : decoder_families()) {
      if (mesh.expert_parallel > 1 && !family.has_experts) continue;
      for (const Schedule schedule : kSchedules) {
        if (!is_long_run() && number++ % 19 != 0) continue;
        expect_no_fault({.job = {.family = family.name,
                                 .num_layers = 8,
                                 .balances_by_loss = family.has_experts,
                                 .num_microbatches = 8 * mesh.data_parallel_replicate * mesh.data_parallel_shard,
                                 .num_steps = 2},
                         .layout = {.mesh = mesh, .schedule = schedule, .checkpoints = Checkpoints::kLayers}});
      }
    }
  }
}

// Each rank sends its positions to the next stage. Every other head is tied. All combinations where RC_PARAMS is set;
// otherwise one in three, with each schedule and each mesh.
TEST(PipelineParallel, Trains_tensor_parallel_stages_of_each_schedule_as_on_one_rank) {
  const std::vector<DeviceMeshParameters> meshes = {
      {.tensor_parallel = 2},
      {.pipeline_parallel = 2, .tensor_parallel = 2},
      {.pipeline_parallel = 2, .data_parallel_replicate = 2, .tensor_parallel = 2},
      {.pipeline_parallel = 2, .data_parallel_shard = 2, .tensor_parallel = 2},
      {.pipeline_parallel = 2, .context_parallel_shard = 2, .tensor_parallel = 2},
      {.pipeline_parallel = 2, .context_parallel_replicate = 2, .tensor_parallel = 2}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const DeviceMeshParameters& mesh = meshes[i];
    for (std::size_t j = 0; j < std::size(kSchedules); ++j) {
      const std::size_t number = i * std::size(kSchedules) + j;
      if (!is_long_run() && number % 3 != 0) continue;
      expect_no_fault({.job = {.num_layers = 4,
                               .ties_embeddings = number % 2 == 1,
                               .num_microbatches = 8 * mesh.data_parallel_replicate * mesh.data_parallel_shard,
                               .num_steps = 2},
                       .layout = {.mesh = mesh, .schedule = kSchedules[j], .checkpoints = Checkpoints::kLayers}});
    }
  }
}

// The first and the last stage have the embedding: on two ranks, or as a V on one. All where RC_PARAMS is set;
// otherwise one in six.
TEST(PipelineParallel, Trains_a_tied_head_as_on_one_rank) {
  const std::vector<DeviceMeshParameters> meshes = {
      {},
      {.pipeline_parallel = 2},
      {.pipeline_parallel = 4},
      {.pipeline_parallel = 2, .data_parallel_replicate = 2},
      {.pipeline_parallel = 2, .data_parallel_shard = 2},
      {.pipeline_parallel = 2, .data_parallel_replicate = 2, .data_parallel_shard = 2}};
  std::size_t number = 0;
  for (const bool keeps_master_weights : {false, true}) {
    for (const DeviceMeshParameters& mesh : meshes) {
      for (const Schedule schedule : kSchedules) {
        if (!is_long_run() && number++ % 6 != 0) continue;
        expect_no_fault({.job = {.num_layers = 8,
                                 .ties_embeddings = true,
                                 .heads = {Head::kCausalLM, Head::kClassification},
                                 .num_microbatches = 8 * mesh.data_parallel_replicate * mesh.data_parallel_shard,
                                 .num_steps = 3},
                         .layout = {.mesh = mesh,
                                    .schedule = schedule,
                                    .checkpoints = Checkpoints::kLayers,
                                    .keeps_master_weights = keeps_master_weights}});
      }
    }
  }
}

// Norms in float32 in layers of float64.
TEST(PipelineParallel, Trains_layers_of_mixed_dtypes_as_one_rank_does) {
  for (const DecoderFamily& family : decoder_families()) {
    for (const Schedule schedule : {Schedule::kOneFOneB, Schedule::kZeroBubbleV}) {
      expect_no_fault({.job = {.family = family.name,
                               .num_layers = 4,
                               .is_mixed = true,
                               .balances_by_loss = family.has_experts,
                               .num_steps = 1,
                               .update_rule = UpdateRule::kSgd},
                       .layout = {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = schedule}});
    }
  }
}

// Dense layers first, then experts with an auxiliary loss: the cut lies before, within and after the dense ones.
TEST(PipelineParallel, Trains_layers_that_differ_in_their_auxiliary_loss_as_one_rank_does) {
  for (const std::int64_t num_dense : {1, 2, 3}) {
    for (const Schedule schedule : {Schedule::kOneFOneB, Schedule::kZeroBubbleV}) {
      const bool is_own = schedule == Schedule::kOneFOneB;
      expect_no_fault({.job = {.family = is_own ? kOwnLayers : "qwen3_moe",
                               .own = {.has_experts = is_own},
                               .num_layers = 4,
                               .num_dense = num_dense,
                               .balances_by_loss = true,
                               .num_steps = 2},
                       .layout = {.mesh = {.pipeline_parallel = 2},
                                  .schedule = schedule,
                                  .checkpoints = num_dense == 2 ? Checkpoints::kOuterNested : Checkpoints::kNone}});
    }
  }
}

TEST(PipelineParallel, Continues_on_other_stages_as_one_rank_would) {
  const std::vector<Layout> layouts = {
      {},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = Schedule::kZeroBubbleV},
      {.mesh = {.pipeline_parallel = 4}, .schedule = Schedule::kGPipe},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2}, .schedule = Schedule::kDualPipeV},
      {.schedule = Schedule::kInterleaved}};
  for (std::size_t first = 0; first < layouts.size(); ++first) {
    for (std::size_t rest = 0; rest < layouts.size(); ++rest) {
      if (!is_long_run() && rest != (first + 1) % layouts.size()) continue;
      expect_no_fault({.job = {.num_layers = 4, .heads = {Head::kCausalLM, Head::kClassification}},
                       .layout = layouts[first],
                       .resumes_at = 1,
                       .rest = layouts[rest]});
    }
  }
}

}  // namespace
}  // namespace d9d::test::pipeline_parallel_test
