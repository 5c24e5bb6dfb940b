// Any data-parallel layout trains as one rank does.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"

namespace d9d::test {
namespace {

struct Layout {
  const char* name;
  DeviceMeshParameters mesh;
};

class DataParallel : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, DataParallel,
    ::testing::Values(Layout{"replicate2", {.data_parallel_replicate = 2}},
                      Layout{"replicate4", {.data_parallel_replicate = 4}},
                      Layout{"shard2", {.data_parallel_shard = 2}}, Layout{"shard4", {.data_parallel_shard = 4}},
                      Layout{"shard8", {.data_parallel_shard = 8}},
                      Layout{"hybrid2x2", {.data_parallel_replicate = 2, .data_parallel_shard = 2}},
                      Layout{"hybrid2x4", {.data_parallel_replicate = 2, .data_parallel_shard = 4}}),
    [](const auto& layout) { return layout.param.name; });

TEST_P(DataParallel, Trains_a_dense_decoder_as_one_rank_does) {
  const LayoutJob job;
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(DataParallel, Trains_experts_as_one_rank_does) {
  const LayoutJob job{.family = ModelFamily::kMoE};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(DataParallel, Trains_tied_frozen_checkpointed_layers_over_several_microbatches) {
  const LayoutJob job{.ties_embeddings = true, .checkpoints = true, .freezes_attention = true, .num_accumulations = 3};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

TEST_P(DataParallel, Reduces_once_a_step_when_asked) {
  const LayoutJob job{.num_accumulations = 3, .fsdp = {.reduce_on_last_microbatch = true}};
  expect_same(train(GetParam().mesh, job), train({}, job), tolerance("fp64"));
}

// Where ranks read each other's memory nothing but the way of the slices differs: bit for bit.
TEST_P(DataParallel, Trains_with_copied_slices_as_with_gathered_ones) {
  for (const ModelFamily family : {ModelFamily::kDense, ModelFamily::kMoE}) {
    for (const ReshardAfterForward reshard : {ReshardAfterForward::kExceptLast, ReshardAfterForward::kNever}) {
      LayoutJob job{.family = family,
                    .ties_embeddings = family == ModelFamily::kDense,
                    .checkpoints = true,
                    .freezes_attention = true,
                    .is_mixed = true,
                    .num_accumulations = 2,
                    .fsdp = {.reshard_after_forward = reshard,
                             .gather = ExchangeMethod::kCommunicator,
                             .reduce = ExchangeMethod::kCommunicator}};
      const LayoutResult gathered = train(GetParam().mesh, job);
      job.fsdp.gather = job.fsdp.reduce = ExchangeMethod::kCopyEngine;
      const LayoutResult copied = train(GetParam().mesh, job);
      EXPECT_EQ(copied.losses, gathered.losses);
      for (const auto& [name, parameter] : gathered.parameters) {
        EXPECT_TRUE(at::equal(copied.parameters.at(name), parameter)) << name;
      }
    }
  }
}

// The smallest and the largest layout over sockets, as processes would talk.
TEST(DataParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job{.ties_embeddings = true, .num_accumulations = 3};
  const LayoutResult expected = train({}, job);
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_shard = 2},
        DeviceMeshParameters{.data_parallel_replicate = 2, .data_parallel_shard = 4}}) {
    expect_same(train(mesh, job, RankBackend::kGloo), expected, tolerance("fp64"));
  }
}

}  // namespace
}  // namespace d9d::test
