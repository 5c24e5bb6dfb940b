// Every head of every family under data, sharded, expert, context and tensor parallelism, separately and combined.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"
#include "tests/support/decoder_families.h"
#include "tests/support/turns.h"

namespace d9d::test::heads_test {
namespace {

struct NamedMesh {
  const char* name;
  DeviceMeshParameters mesh;
};

class Heads : public ::testing::TestWithParam<NamedMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, Heads,
    ::testing::ValuesIn(in_turn(
        std::vector<NamedMesh>{
            NamedMesh{"replicate2", {.data_parallel_replicate = 2}}, NamedMesh{"shard4", {.data_parallel_shard = 4}},
            NamedMesh{"hybrid2x2", {.data_parallel_replicate = 2, .data_parallel_shard = 2}},
            NamedMesh{"cp_shard2", {.context_parallel_shard = 2}},
            NamedMesh{"replicate2_cp_replicate2", {.data_parallel_replicate = 2, .context_parallel_replicate = 2}},
            NamedMesh{"replicate2_ep2", {.data_parallel_replicate = 2, .expert_parallel = 2}},
            NamedMesh{"shard4_ep2", {.data_parallel_shard = 4, .expert_parallel = 2}},
            NamedMesh{"hybrid2x2_ep4", {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 4}},
            NamedMesh{"tp2", {.tensor_parallel = 2}},
            NamedMesh{"shard2_tp2", {.data_parallel_shard = 2, .tensor_parallel = 2}},
            NamedMesh{"cp_replicate2_tp2", {.context_parallel_replicate = 2, .tensor_parallel = 2}},
            NamedMesh{"pp2_replicate2_tp2",
                      {.pipeline_parallel = 2, .data_parallel_replicate = 2, .tensor_parallel = 2}}},
        3)),
    [](const auto& named) { return named.param.name; });

TEST_P(Heads, Train_as_on_one_rank) {
  using enum Head;
  for (const DecoderFamily& family : decoder_families()) {
    if (GetParam().mesh.expert_parallel > 1 && !family.has_experts) continue;
    for (const std::vector<Head>& heads :
         {std::vector{kCausalLM}, {kClassification}, {kEmbedding}, {kCausalLM, kClassification, kEmbedding}}) {
      for (const Pooling pooling : {Pooling::kAll, Pooling::kLast}) {
        const LayoutCase drawn{.job = {.family = family.name,
                                       .num_layers = 2,
                                       .heads = heads,
                                       .pooling = pooling,
                                       .num_microbatches = 4,
                                       .num_steps = 2},
                               .layout = {.mesh = GetParam().mesh}};
        const std::string fault = fault_of(drawn);
        EXPECT_TRUE(fault.empty()) << to_source(drawn) << "\n" << fault;
      }
    }
  }
}

TEST(HeadsOfSharedSequences, Train_with_dropout_and_adapters_as_on_one_rank) {
  using enum Head;
  for (const Pooling pooling : {Pooling::kAll, Pooling::kSome, Pooling::kLast}) {
    for (const bool adapts : {false, true}) {
      const LayoutCase drawn{
          .job = {.num_layers = 2,
                  .adapts = adapts,
                  .adapter_dropout = 0.25,
                  .heads = {kCausalLM, kClassification, kEmbedding},
                  .head_dropout = 0.25,
                  .leaves_out = LeftOut::kMicrobatches,
                  .pooling = pooling,
                  .num_microbatches = 4,
                  .num_sequences = 2},
          .layout = {.mesh = {.context_parallel_shard = 2, .tensor_parallel = 2}, .checkpoints = Checkpoints::kLayers}};
      EXPECT_EQ(fault_of(drawn), "") << to_source(drawn);
    }
  }
}

TEST(Snapshots, Train_on_every_axis_as_on_one_rank) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.tensor_parallel = 2}, DeviceMeshParameters{.context_parallel_shard = 2},
        DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_replicate = 2, .tensor_parallel = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .tensor_parallel = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_shard = 2, .tensor_parallel = 2}}) {
    for (const Pooling pooling : {Pooling::kAll, Pooling::kSome, Pooling::kLast}) {
      const LayoutCase drawn{.job = {.has_snapshots = true, .pooling = pooling, .num_sequences = 2},
                             .layout = {.mesh = mesh, .checkpoints = Checkpoints::kLayers}};
      EXPECT_EQ(fault_of(drawn), "") << to_source(drawn);
    }
  }
}

}  // namespace
}  // namespace d9d::test::heads_test
