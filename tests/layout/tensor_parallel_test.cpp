// Tensor parallelism trains as one rank does, alone and under each kind of data parallelism.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"

namespace d9d::test {
namespace {

struct Layout {
  const char* name;
  DeviceMeshParameters mesh;
};

class TensorParallel : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, TensorParallel,
    ::testing::Values(Layout{"tp2", {.tensor_parallel = 2}},
                      Layout{"replicate2_tp2", {.data_parallel_replicate = 2, .tensor_parallel = 2}},
                      Layout{"shard2_tp2", {.data_parallel_shard = 2, .tensor_parallel = 2}},
                      Layout{"hybrid2x2_tp2",
                             {.data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2}}),
    [](const auto& layout) { return layout.param.name; });

TEST_P(TensorParallel, Trains_as_one_rank_does) {
  const LayoutJob job;
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(TensorParallel, Trains_tied_frozen_checkpointed_layers_over_several_microbatches) {
  const LayoutJob job{.ties_embeddings = true, .checkpoints = true, .freezes_attention = true, .num_accumulations = 3};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(TensorParallel, Reduces_once_a_step_when_asked) {
  const LayoutJob job{.checkpoints = true, .num_accumulations = 3, .fsdp = {.reduce_on_last_microbatch = true}};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST(TensorParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job{.checkpoints = true, .num_accumulations = 3};
  const DeviceMeshParameters mesh{.data_parallel_shard = 2, .tensor_parallel = 2};
  expect_same(train(mesh, job, RankBackend::kGloo), train({}, job), tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test
