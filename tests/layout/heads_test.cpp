// Every head of every family under data, sharded, expert and context parallelism, separately and combined.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"
#include "tests/support/decoder_families.h"

namespace d9d::test::heads_test {
namespace {

struct NamedMesh {
  const char* name;
  DeviceMeshParameters mesh;
};

class Heads : public ::testing::TestWithParam<NamedMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, Heads,
    ::testing::Values(
        NamedMesh{"replicate2", {.data_parallel_replicate = 2}}, NamedMesh{"shard4", {.data_parallel_shard = 4}},
        NamedMesh{"hybrid2x2", {.data_parallel_replicate = 2, .data_parallel_shard = 2}},
        NamedMesh{"cp_shard2", {.context_parallel_shard = 2}},
        NamedMesh{"replicate2_cp_replicate2", {.data_parallel_replicate = 2, .context_parallel_replicate = 2}},
        NamedMesh{"replicate2_ep2", {.data_parallel_replicate = 2, .expert_parallel = 2}},
        NamedMesh{"shard4_ep2", {.data_parallel_shard = 4, .expert_parallel = 2}},
        NamedMesh{"hybrid2x2_ep4", {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 4}}),
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

TEST(HeadsOfOtherKinds, Are_refused_with_tensor_parallelism_but_for_causal_language_models) {
  for (const Head head : {Head::kClassification, Head::kEmbedding}) {
    const LayoutCase drawn{.job = {.heads = {head}}, .layout = {.mesh = {.tensor_parallel = 2}}};
    ASSERT_TRUE(refusal(drawn).has_value());
    EXPECT_EQ(fault_of(drawn), "");
  }
}

}  // namespace
}  // namespace d9d::test::heads_test
