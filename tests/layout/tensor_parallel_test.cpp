// Tensor parallelism must train as one rank does, alone and with each kind of data parallelism.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"
#include "tests/support/decoder_families.h"
#include "tests/support/turns.h"

namespace d9d::test::tensor_parallel_test {
namespace {

struct NamedMesh {
  const char* name;
  DeviceMeshParameters mesh;
};

class TensorParallel : public ::testing::TestWithParam<NamedMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, TensorParallel,
    ::testing::ValuesIn(in_turn(
        std::vector<NamedMesh>{
            NamedMesh{"tp2", {.tensor_parallel = 2}},
            NamedMesh{"replicate2_tp2", {.data_parallel_replicate = 2, .tensor_parallel = 2}},
            NamedMesh{"shard2_tp2", {.data_parallel_shard = 2, .tensor_parallel = 2}},
            NamedMesh{"hybrid2x2_tp2", {.data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2}},
            NamedMesh{"cp_shard2_tp2", {.context_parallel_shard = 2, .tensor_parallel = 2}},
            NamedMesh{"pp2_shard2_tp2", {.pipeline_parallel = 2, .data_parallel_shard = 2, .tensor_parallel = 2}}},
        3)),
    [](const auto& layout) { return layout.param.name; });

TEST_P(TensorParallel, Trains_every_family_as_one_rank_does) {
  for (const DecoderFamily& family : decoder_families()) {
    SCOPED_TRACE(family.name);
    const LayoutJob job{.family = family.name};
    expect_same(train({.mesh = GetParam().mesh}, job), on_one_rank(job), tolerance("fp64"));
  }
}

TEST_P(TensorParallel, Trains_tied_frozen_checkpointed_layers_over_several_microbatches) {
  const LayoutJob job{.ties_embeddings = true, .freezes_attention = true, .num_microbatches = 24};
  const Layout layout{.mesh = GetParam().mesh, .checkpoints = Checkpoints::kLayers};
  expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
}

TEST_P(TensorParallel, Exchanges_by_copies) {
  for (const Checkpoints checkpoints : {Checkpoints::kNone, Checkpoints::kLayers}) {
    const LayoutJob job{.num_microbatches = 24};
    const Layout layout{
        .mesh = GetParam().mesh, .checkpoints = checkpoints, .tensor = {.exchange = ExchangeMethod::kCopyEngine}};
    expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
  }
}

TEST_P(TensorParallel, Reduces_once_a_step_when_asked) {
  const LayoutJob job{.num_microbatches = 24};
  const Layout layout{
      .mesh = GetParam().mesh, .checkpoints = Checkpoints::kLayers, .fsdp = {.reduce_on_last_microbatch = true}};
  expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
}

TEST(TensorParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job{.num_microbatches = 24};
  const Layout layout{.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2}, .checkpoints = Checkpoints::kLayers};
  expect_same(train(layout, job, RankBackend::kGloo), on_one_rank(job), tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test::tensor_parallel_test
