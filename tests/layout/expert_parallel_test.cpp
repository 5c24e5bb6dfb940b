// Experts over ranks train as on one rank, whatever holds the other parameters.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"

namespace d9d::test {
namespace {

struct Layout {
  const char* name;
  DeviceMeshParameters mesh;
};

class ExpertParallel : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, ExpertParallel,
    ::testing::Values(
        Layout{"replicate2_ep2", {.data_parallel_replicate = 2, .expert_parallel = 2}},
        Layout{"replicate4_ep2", {.data_parallel_replicate = 4, .expert_parallel = 2}},
        Layout{"replicate8_ep8", {.data_parallel_replicate = 8, .expert_parallel = 8}},
        Layout{"shard2_ep2", {.data_parallel_shard = 2, .expert_parallel = 2}},
        Layout{"shard4_ep2", {.data_parallel_shard = 4, .expert_parallel = 2}},
        Layout{"shard8_ep4", {.data_parallel_shard = 8, .expert_parallel = 4}},
        Layout{"hybrid2x2_ep4", {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 4}},
        Layout{"hybrid4x2_ep2", {.data_parallel_replicate = 4, .data_parallel_shard = 2, .expert_parallel = 2}}),
    [](const auto& layout) { return layout.param.name; });

TEST_P(ExpertParallel, Trains_as_one_rank_does) {
  const LayoutJob job{.family = ModelFamily::kMoE};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(ExpertParallel, Trains_checkpointed_frozen_layers_over_several_microbatches) {
  const LayoutJob job{
      .family = ModelFamily::kMoE, .checkpoints = true, .freezes_attention = true, .num_accumulations = 3};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(ExpertParallel, Trains_with_an_auxiliary_loss) {
  const LayoutJob job{
      .family = ModelFamily::kMoE, .checkpoints = true, .balances_experts = true, .num_accumulations = 2};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(ExpertParallel, Trains_with_ranks_to_which_no_token_goes) {
  const LayoutJob job{.family = ModelFamily::kMoE, .starves_experts = true};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST(ExpertParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job{.family = ModelFamily::kMoE, .checkpoints = true};
  const DeviceMeshParameters mesh{.data_parallel_shard = 4, .expert_parallel = 2};
  expect_same(train(mesh, job, RankBackend::kGloo), train({}, job), tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test
