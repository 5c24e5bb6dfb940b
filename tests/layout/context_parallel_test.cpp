// Context parallelism trains as one rank does, by either of its degrees, with data, tensor and expert parallelism.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"

namespace d9d::test {
namespace {

struct Layout {
  const char* name;
  DeviceMeshParameters mesh;
};

class ContextParallel : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, ContextParallel,
    ::testing::Values(Layout{"cp_shard2", {.context_parallel_shard = 2}},
                      Layout{"cp_replicate2", {.context_parallel_replicate = 2}},
                      Layout{"cp_replicate2_shard2", {.context_parallel_replicate = 2, .context_parallel_shard = 2}},
                      Layout{"shard2_cp_shard2", {.data_parallel_shard = 2, .context_parallel_shard = 2}},
                      Layout{"shard2_cp_replicate2", {.data_parallel_shard = 2, .context_parallel_replicate = 2}},
                      Layout{"replicate2_cp_shard2", {.data_parallel_replicate = 2, .context_parallel_shard = 2}},
                      Layout{"cp_shard2_tp2", {.context_parallel_shard = 2, .tensor_parallel = 2}},
                      Layout{"cp_replicate2_tp2", {.context_parallel_replicate = 2, .tensor_parallel = 2}},
                      Layout{"shard2_cp_shard2_tp2",
                             {.data_parallel_shard = 2, .context_parallel_shard = 2, .tensor_parallel = 2}}),
    [](const auto& layout) { return layout.param.name; });

TEST_P(ContextParallel, Trains_as_one_rank_does) {
  const LayoutJob job;
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(ContextParallel, Trains_tied_frozen_checkpointed_layers_over_several_microbatches) {
  const LayoutJob job{.ties_embeddings = true, .checkpoints = true, .freezes_attention = true, .num_accumulations = 3};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST(ContextParallelExperts, Train_as_on_one_rank) {
  const LayoutJob job{.family = ModelFamily::kMoE, .checkpoints = true};
  const LayoutResult expected = train({}, job);
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.context_parallel_shard = 2}, DeviceMeshParameters{.context_parallel_replicate = 2},
        DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_shard = 2, .expert_parallel = 2}}) {
    expect_same(train(mesh, job), expected, tolerance("fp64"));
  }
}

TEST(ContextParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job{.checkpoints = true};
  const DeviceMeshParameters mesh{.data_parallel_shard = 2, .context_parallel_shard = 2};
  expect_same(train(mesh, job, RankBackend::kGloo), train({}, job), tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test
