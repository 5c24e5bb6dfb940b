// Context parallelism must train as one rank does, with either of its degrees, and with data, tensor and expert
// parallelism.
#include <gtest/gtest.h>

#include "tests/layout/fuzz_params.h"
#include "tests/layout/layout_case.h"
#include "tests/support/decoder_families.h"
#include "tests/support/turns.h"

namespace d9d::test::context_parallel_test {
namespace {

struct NamedMesh {
  const char* name;
  DeviceMeshParameters mesh;
};

class ContextParallel : public ::testing::TestWithParam<NamedMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, ContextParallel,
    ::testing::ValuesIn(in_turn(
        std::vector<NamedMesh>{
            NamedMesh{"cp_shard2", {.context_parallel_shard = 2}},
            NamedMesh{"cp_replicate2", {.context_parallel_replicate = 2}},
            NamedMesh{"cp_replicate2_shard2", {.context_parallel_replicate = 2, .context_parallel_shard = 2}},
            NamedMesh{"shard2_cp_shard2", {.data_parallel_shard = 2, .context_parallel_shard = 2}},
            NamedMesh{"shard2_cp_replicate2", {.data_parallel_shard = 2, .context_parallel_replicate = 2}},
            NamedMesh{"replicate2_cp_shard2", {.data_parallel_replicate = 2, .context_parallel_shard = 2}},
            NamedMesh{"cp_shard2_tp2", {.context_parallel_shard = 2, .tensor_parallel = 2}},
            NamedMesh{"cp_replicate2_tp2", {.context_parallel_replicate = 2, .tensor_parallel = 2}},
            NamedMesh{"shard2_cp_shard2_tp2",
                      {.data_parallel_shard = 2, .context_parallel_shard = 2, .tensor_parallel = 2}}},
        3)),
    [](const auto& layout) { return layout.param.name; });

TEST_P(ContextParallel, Trains_as_one_rank_does) {
  const LayoutJob job;
  expect_same(train({.mesh = GetParam().mesh}, job), on_one_rank(job), tolerance("fp64"));
}

TEST_P(ContextParallel, Trains_tied_frozen_checkpointed_layers_over_several_microbatches) {
  const LayoutJob job{.ties_embeddings = true, .freezes_attention = true, .num_microbatches = 24};
  const Layout layout{.mesh = GetParam().mesh, .checkpoints = Checkpoints::kLayers};
  expect_same(train(layout, job), on_one_rank(job), tolerance("fp64"));
}

TEST(ContextParallelHeads, Train_as_one_rank_does) {
  for (const Attention attention : {Attention::kPlain, Attention::kGated, Attention::kWindow}) {
    const LayoutJob job{
        .family = kOwnLayers, .own = {.attention = attention}, .num_heads = 8, .num_key_heads = 2, .num_sequences = 2};
    const LayoutResult expected = on_one_rank(job);
    for (const DeviceMeshParameters& mesh :
         {DeviceMeshParameters{.context_parallel_shard = 2}, DeviceMeshParameters{.context_parallel_shard = 4},
          DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_replicate = 2},
          DeviceMeshParameters{.context_parallel_shard = 2, .tensor_parallel = 2}}) {
      expect_same(
          train({.mesh = mesh, .checkpoints = Checkpoints::kLayers, .context = {.attention = ContextAttention::kHeads}},
                job),
          expected, tolerance("fp64"));
    }
  }
}

// Over two ranks, which keep each other's keys, and more, which fetch them again in backward.
TEST(ContextParallelRing, Trains_as_one_rank_does) {
  const OwnLayers gated{.attention = Attention::kGated, .dropout = 0.25};
  const std::vector<LayoutCase> cases = {
      {.job = {.freezes_attention = true, .calls_layers_twice = true, .has_pairs = true}},
      {.job = {.family = kOwnLayers, .own = gated, .num_positions = 24},
       .layout = {.checkpoints = Checkpoints::kOuterNested, .sleeps = {SleepTag::kComms}}},
      {.job = {.num_layers = 4, .num_sequences = 2},
       .layout = {.mesh = {.pipeline_parallel = 2}, .schedule = Schedule::kZeroBubble}},
      {.job = {.num_layers = 4},
       .layout = {.mesh = {.pipeline_parallel = 2},
                  .schedule = Schedule::kDualPipeV,
                  .checkpoints = Checkpoints::kLayers}},
      {.job = {.has_short_sequences = true, .num_sequences = 2},
       .layout = {.mesh = {.tensor_parallel = 2}, .pads = true}},
      {.job = {.prefers = true, .num_sequences = 2}, .layout = {.mesh = {.data_parallel_shard = 2}}},
      {.job = {.family = kOwnLayers, .own = {.attention = Attention::kWindow}, .num_positions = 24}},
      {.job = {.family = kOwnLayers, .own = gated, .packs = true, .num_sequences = 2, .num_positions = 24},
       .layout = {.checkpoints = Checkpoints::kLayers}},
      {.job = {.has_short_sequences = true, .num_sequences = 2}}};
  Turns turns(3);
  for (const LayoutCase& each : cases) {
    for (const std::int64_t num_ranks : {2, 3}) {
      if (!turns.has_next()) continue;
      LayoutCase drawn = each;
      drawn.layout.mesh.context_parallel_shard = num_ranks;
      drawn.layout.context.attention = ContextAttention::kRing;
      EXPECT_EQ(fault_of(drawn), "") << to_source(drawn);
    }
  }
}

// Documents that do not see each other: two a row of eight positions, whose boundary is at each of them in turn, in two
// rows; and up to eight positions, or none, in one row.
TEST(ContextParallelPacks, Train_as_on_one_rank) {
  const OwnLayers window{.attention = Attention::kWindow};
  Turns turns(2);
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.context_parallel_shard = 2}, DeviceMeshParameters{.context_parallel_shard = 4},
        DeviceMeshParameters{.context_parallel_replicate = 2, .context_parallel_shard = 2},
        DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_shard = 2, .expert_parallel = 4},
        DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_shard = 2, .tensor_parallel = 2}}) {
    for (const LayoutJob& job : {LayoutJob{.family = "qwen3_moe", .balances_by_loss = true},
                                 LayoutJob{.family = kOwnLayers, .own = window, .num_layers = 2}}) {
      if (mesh.expert_parallel > 1 && !has_experts(job)) continue;
      LayoutCase drawn{.job = job, .layout = {.mesh = mesh}};
      drawn.job.num_sequences = 2;
      for (const ContextAttention method : {ContextAttention::kAuto, ContextAttention::kRing}) {
        if (method == ContextAttention::kRing && job.family == kOwnLayers) continue;  // windows of packed documents
        if (!turns.has_next()) continue;
        drawn.layout.context.attention = method;
        drawn.job.packs = true;
        drawn.job.has_short_sequences = false;
        EXPECT_EQ(fault_of(drawn), "") << to_source(drawn);
        drawn.job.packs = false;
        drawn.job.has_short_sequences = true;
        EXPECT_EQ(fault_of(drawn), "") << to_source(drawn);
      }
    }
  }
}

TEST(ContextParallelPacks, Train_with_dropout_and_checkpoints_as_on_one_rank) {
  const LayoutCase drawn{
      .job = {.family = kOwnLayers, .own = {.has_experts = true, .dropout = 0.25}, .packs = true},
      .layout = {.mesh = {.data_parallel_shard = 2, .context_parallel_shard = 2}, .checkpoints = Checkpoints::kNested}};
  EXPECT_EQ(fault_of(drawn), "");
}

TEST(ContextParallelExperts, Train_as_on_one_rank) {
  for (const DecoderFamily& family : decoder_families()) {
    if (!family.has_experts) continue;
    const LayoutJob job{.family = family.name};
    const LayoutResult expected = on_one_rank(job);
    for (const DeviceMeshParameters& mesh :
         {DeviceMeshParameters{.context_parallel_shard = 2}, DeviceMeshParameters{.context_parallel_replicate = 2},
          DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_shard = 2, .expert_parallel = 2}}) {
      expect_same(train({.mesh = mesh, .checkpoints = Checkpoints::kLayers}, job), expected, tolerance("fp64"));
    }
  }
}

TEST(ContextParallelExperts, Are_balanced_as_on_one_rank) {
  for (const DecoderFamily& family : decoder_families()) {
    if (!family.has_experts) continue;
    const LayoutJob job{.family = family.name, .balances_by_loss = true};
    const LayoutResult expected = on_one_rank(job);
    for (const Checkpoints checkpoints : {Checkpoints::kNone, Checkpoints::kLayers}) {
      for (const DeviceMeshParameters& mesh :
           {DeviceMeshParameters{.context_parallel_shard = 2}, DeviceMeshParameters{.context_parallel_replicate = 2},
            DeviceMeshParameters{.context_parallel_replicate = 2, .context_parallel_shard = 2},
            DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_shard = 2, .expert_parallel = 2}}) {
        expect_same(train({.mesh = mesh, .checkpoints = checkpoints}, job), expected, tolerance("fp64"));
      }
    }
  }
}

// Chunks of hundreds of positions, which kernels compute block by block. All where RC_PARAMS is set.
TEST(ContextParallel, Trains_on_long_sequences_as_one_rank_does) {
  const LayoutJob job{
      .num_layers = 2, .num_microbatches = 1, .num_positions = is_long_run() ? 4096 : 512, .num_steps = 2};
  const LayoutResult expected = on_one_rank(job);
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.context_parallel_shard = 4},
                                           DeviceMeshParameters{.context_parallel_shard = 2, .tensor_parallel = 2}}) {
    expect_same(train({.mesh = mesh, .checkpoints = Checkpoints::kLayers}, job), expected, tolerance("fp64"));
  }
}

TEST(ContextParallelOverGloo, Trains_as_one_rank_does) {
  const LayoutJob job;
  const Layout layout{.mesh = {.data_parallel_shard = 2, .context_parallel_shard = 2},
                      .checkpoints = Checkpoints::kLayers};
  expect_same(train(layout, job, RankBackend::kGloo), on_one_rank(job), tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test::context_parallel_test
