// Every data-parallel layout must train as one rank does.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"
#include "tests/support/decoder_families.h"
#include "tests/support/turns.h"

namespace d9d::test::data_parallel_test {
namespace {

struct NamedMesh {
  const char* name;
  DeviceMeshParameters mesh;
};

class DataParallel : public ::testing::TestWithParam<NamedMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, DataParallel,
    ::testing::ValuesIn(in_turn(
        std::vector<NamedMesh>{
            NamedMesh{"replicate2", {.data_parallel_replicate = 2}},
            NamedMesh{"replicate4", {.data_parallel_replicate = 4}}, NamedMesh{"shard2", {.data_parallel_shard = 2}},
            NamedMesh{"shard4", {.data_parallel_shard = 4}}, NamedMesh{"shard8", {.data_parallel_shard = 8}},
            NamedMesh{"hybrid2x2", {.data_parallel_replicate = 2, .data_parallel_shard = 2}},
            NamedMesh{"hybrid2x4", {.data_parallel_replicate = 2, .data_parallel_shard = 4}}},
        3)),
    [](const auto& layout) { return layout.param.name; });

TEST_P(DataParallel, Trains_every_family_as_one_rank_does) {
  for (const DecoderFamily& family : decoder_families()) {
    SCOPED_TRACE(family.name);
    const LayoutJob job{.family = family.name};
    expect_same(train({.mesh = GetParam().mesh}, job), on_one_rank(job), tolerance("fp64"));
  }
}

TEST_P(DataParallel, Trains_tied_frozen_checkpointed_layers_over_several_microbatches) {
  const LayoutJob job{.ties_embeddings = true, .freezes_attention = true, .num_microbatches = 24};
  const Layout layout{.mesh = GetParam().mesh, .checkpoints = Checkpoints::kLayers};
  expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
}

TEST_P(DataParallel, Reduces_once_a_step_when_asked) {
  const LayoutJob job{.num_microbatches = 24};
  const Layout layout{.mesh = GetParam().mesh, .fsdp = {.reduce_on_last_microbatch = true}};
  expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
}

// If ranks read each other's memory only the transfer of slices differs: results are equal bit for bit.
TEST_P(DataParallel, Trains_with_copied_slices_as_with_gathered_ones) {
  for (const DecoderFamily& family : decoder_families()) {
    for (const ReshardAfterForward reshard : {ReshardAfterForward::kExceptLast, ReshardAfterForward::kNever}) {
      const LayoutJob job{.family = family.name,
                          .ties_embeddings = !family.has_experts,
                          .freezes_attention = true,
                          .is_mixed = true,
                          .num_microbatches = 16};
      Layout layout{.mesh = GetParam().mesh,
                    .checkpoints = Checkpoints::kLayers,
                    .fsdp = {.reshard_after_forward = reshard,
                             .gather = ExchangeMethod::kCommunicator,
                             .reduce = ExchangeMethod::kCommunicator}};
      const LayoutResult gathered = train(layout, job);
      layout.fsdp.gather = layout.fsdp.reduce = ExchangeMethod::kCopyEngine;
      const LayoutResult copied = train(layout, job);
      EXPECT_EQ(copied.losses, gathered.losses);
      for (const auto& [name, parameter] : gathered.parameters) {
        EXPECT_TRUE(at::equal(copied.parameters.at(name), parameter)) << name;
      }
    }
  }
}

// The smallest and the largest layout over sockets, as between processes.
TEST(DataParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job{.ties_embeddings = true, .num_microbatches = 24};
  const LayoutResult expected = on_one_rank(job);
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_shard = 2},
        DeviceMeshParameters{.data_parallel_replicate = 2, .data_parallel_shard = 4}}) {
    expect_same(train({.mesh = mesh}, job, RankBackend::kGloo), expected, tolerance("fp64"));
  }
}

}  // namespace
}  // namespace d9d::test::data_parallel_test
