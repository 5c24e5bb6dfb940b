// Experts distributed over ranks must train as on one rank, for any layout of the other parameters.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"
#include "tests/support/decoder_families.h"
#include "tests/support/turns.h"

namespace d9d::test::expert_parallel_test {
namespace {

struct NamedMesh {
  const char* name;
  DeviceMeshParameters mesh;
};

std::vector<std::string> families_with_experts() {
  std::vector<std::string> names;
  for (const DecoderFamily& family : decoder_families()) {
    if (family.has_experts) names.push_back(family.name);
  }
  return names;
}

class ExpertParallel : public ::testing::TestWithParam<NamedMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, ExpertParallel,
    ::testing::ValuesIn(in_turn(
        std::vector<NamedMesh>{
            NamedMesh{"replicate2_ep2", {.data_parallel_replicate = 2, .expert_parallel = 2}},
            NamedMesh{"replicate4_ep2", {.data_parallel_replicate = 4, .expert_parallel = 2}},
            NamedMesh{"replicate8_ep8", {.data_parallel_replicate = 8, .expert_parallel = 8}},
            NamedMesh{"shard2_ep2", {.data_parallel_shard = 2, .expert_parallel = 2}},
            NamedMesh{"shard4_ep2", {.data_parallel_shard = 4, .expert_parallel = 2}},
            NamedMesh{"shard8_ep4", {.data_parallel_shard = 8, .expert_parallel = 4}},
            NamedMesh{"hybrid2x2_ep4", {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 4}},
            NamedMesh{"hybrid4x2_ep2", {.data_parallel_replicate = 4, .data_parallel_shard = 2, .expert_parallel = 2}},
            // Over tensor-parallel ranks, whose tokens are others.
            NamedMesh{"tp2", {.tensor_parallel = 2}},
            NamedMesh{"tp2_ep2", {.tensor_parallel = 2, .expert_parallel = 2}},
            NamedMesh{"replicate2_tp2_ep4", {.data_parallel_replicate = 2, .tensor_parallel = 2, .expert_parallel = 4}},
            NamedMesh{"shard2_tp2", {.data_parallel_shard = 2, .tensor_parallel = 2}},
            NamedMesh{"shard4_tp2_ep4", {.data_parallel_shard = 4, .tensor_parallel = 2, .expert_parallel = 4}},
            NamedMesh{
                "hybrid2x2_tp2_ep2",
                {.data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
            NamedMesh{"cp_shard2_tp2_ep4", {.context_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 4}},
            NamedMesh{"cp_replicate2_tp2", {.context_parallel_replicate = 2, .tensor_parallel = 2}},
            NamedMesh{"pp2_tp2_ep2", {.pipeline_parallel = 2, .tensor_parallel = 2, .expert_parallel = 2}}},
        3)),
    [](const auto& layout) { return layout.param.name; });

TEST_P(ExpertParallel, Trains_as_one_rank_does) {
  for (const std::string& family : families_with_experts()) {
    SCOPED_TRACE(family);
    const LayoutJob job{.family = family};
    expect_same(train({.mesh = GetParam().mesh}, job), on_one_rank(job), tolerance("fp64"));
  }
}

TEST_P(ExpertParallel, Trains_checkpointed_frozen_layers_over_several_microbatches) {
  for (const std::string& family : families_with_experts()) {
    SCOPED_TRACE(family);
    const LayoutJob job{.family = family, .freezes_attention = true, .num_microbatches = 24};
    const Layout layout{.mesh = GetParam().mesh, .checkpoints = Checkpoints::kLayers};
    expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
  }
}

TEST_P(ExpertParallel, Trains_with_an_auxiliary_loss) {
  for (const std::string& family : families_with_experts()) {
    SCOPED_TRACE(family);
    const LayoutJob job{.family = family, .balances_by_loss = true, .num_microbatches = 16};
    const Layout layout{.mesh = GetParam().mesh, .checkpoints = Checkpoints::kLayers};
    expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
  }
}

TEST_P(ExpertParallel, Trains_with_ranks_to_which_no_token_goes) {
  for (const std::string& family : families_with_experts()) {
    SCOPED_TRACE(family);
    const LayoutJob job{.family = family, .starves_experts = true};
    expect_same(train({.mesh = GetParam().mesh}, job), on_one_rank(job), tolerance("fp64"));
  }
}

TEST_P(ExpertParallel, Trains_with_a_bias_and_a_shared_expert_over_padded_sequences) {
  const LayoutJob job{.family = kOwnLayers,
                      .own = {.has_experts = true, .has_shared_expert = true, .has_branch = true, .has_buffer = true},
                      .balances_by_loss = true,
                      .balances_by_bias = true,
                      .has_short_sequences = true,
                      .num_sequences = 2};
  const Layout layout{.mesh = GetParam().mesh, .checkpoints = Checkpoints::kNested, .pads = true};
  expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
}

TEST_P(ExpertParallel, Trains_packed_sequences) {
  const LayoutCase drawn{.job = {.family = families_with_experts().front(), .balances_by_loss = true, .packs = true},
                         .layout = {.mesh = GetParam().mesh}};
  EXPECT_EQ(fault_of(drawn), "");
}

TEST(ExpertParallelOverTensorParallelRanks, Continues_on_another_mesh) {
  const LayoutCase resumed{
      .job = {.family = families_with_experts().front(), .balances_by_loss = true, .balances_by_bias = true},
      .layout = {.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 4}},
      .resumes_at = 1,
      .rest = {.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}}};
  EXPECT_EQ(fault_of(resumed), "");
}

TEST(ExpertParallelOverGloo, Trains_over_tensor_parallel_ranks_as_one_rank_does) {
  const LayoutJob job{.family = families_with_experts().front(), .balances_by_loss = true, .balances_by_bias = true};
  const Layout layout{.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2},
                      .checkpoints = Checkpoints::kLayers};
  expect_same(train(layout, job, RankBackend::kGloo), on_one_rank(job), tolerance("fp64"));
}

TEST(ExpertParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job{.family = families_with_experts().front()};
  const Layout layout{.mesh = {.data_parallel_shard = 4, .expert_parallel = 2}, .checkpoints = Checkpoints::kLayers};
  expect_same(train(layout, job, RankBackend::kGloo), on_one_rank(job), tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test::expert_parallel_test
