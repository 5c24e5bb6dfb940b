// Sizes that tensor-parallel ranks do not divide: each layout must train as one rank does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/layout/layout_case.h"
#include "tests/support/io_faults.h"
#include "tests/support/turns.h"

namespace d9d::test::odd_sizes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct NamedMesh {
  const char* name;
  DeviceMeshParameters mesh;
};

class OddSizes : public ::testing::TestWithParam<NamedMesh> {};
INSTANTIATE_TEST_SUITE_P(Meshes, OddSizes,
                         ::testing::ValuesIn(in_turn(
                             std::vector<NamedMesh>{
                                 NamedMesh{"tp2", {.tensor_parallel = 2}}, NamedMesh{"tp3", {.tensor_parallel = 3}},
                                 NamedMesh{"tp4", {.tensor_parallel = 4}},
                                 NamedMesh{"pp2_tp4", {.pipeline_parallel = 2, .tensor_parallel = 4}},
                                 NamedMesh{"replicate2_tp4", {.data_parallel_replicate = 2, .tensor_parallel = 4}},
                                 NamedMesh{"shard2_tp4", {.data_parallel_shard = 2, .tensor_parallel = 4}},
                                 NamedMesh{"cp2_tp4", {.context_parallel_shard = 2, .tensor_parallel = 4}}},
                             3)),
                         [](const auto& named) { return named.param.name; });

void expect_trains(const LayoutCase& drawn) {
  const std::string fault = fault_of(drawn);
  EXPECT_TRUE(fault.empty()) << to_source(drawn) << "\n" << fault;
}

TEST_P(OddSizes, Of_heads_train_as_on_one_rank) {
  struct Heads {
    std::int64_t num_queries, num_keys;
  };
  for (const auto& [num_queries, num_keys] : {Heads{4, 1}, {3, 3}, {6, 2}, {5, 5}, {6, 3}, {7, 7}}) {
    expect_trains({.job = {.family = "qwen2", .num_layers = 2, .num_heads = num_queries, .num_key_heads = num_keys},
                   .layout = {.mesh = GetParam().mesh}});
  }
}

TEST_P(OddSizes, Of_heads_with_adapters_and_magnitudes_train_as_on_one_rank) {
  expect_trains({.job = {.num_layers = 2, .num_heads = 6, .num_key_heads = 3, .adapts = true, .has_magnitudes = true},
                 .layout = {.mesh = GetParam().mesh}});
}

// Sequences of eight positions, alone, with padding and in packs.
TEST(OddSequences, Train_as_on_one_rank) {
  Turns turns(2);
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.tensor_parallel = 3},
                                           {.pipeline_parallel = 2, .tensor_parallel = 3},
                                           {.data_parallel_shard = 2, .tensor_parallel = 3},
                                           {.context_parallel_shard = 2, .tensor_parallel = 5}}) {
    if (!turns.has_next()) continue;
    expect_trains({.job = {.num_layers = 2, .num_sequences = 2}, .layout = {.mesh = mesh}});
    expect_trains({.job = {.num_layers = 2, .has_short_sequences = true}, .layout = {.mesh = mesh, .pads = true}});
    expect_trains({.job = {.num_layers = 2, .packs = true, .num_sequences = 2}, .layout = {.mesh = mesh}});
    expect_trains(
        {.job = {.num_layers = 2, .has_short_sequences = true, .num_sequences = 2}, .layout = {.mesh = mesh}});
  }
}

TEST(OddMicrobatches, Train_as_on_one_rank) {
  expect_trains({.job = {.num_layers = 2, .num_heads = 3, .num_key_heads = 1},
                 .layout = {.mesh = {.data_parallel_replicate = 2, .tensor_parallel = 2}, .deal = Deal::kByReplica}});
}

TEST(OddExperts, Are_refused_with_a_degree_that_works) {
  const auto run = [] {
    const LayoutJob job{.family = "qwen3_moe", .num_microbatches = 6};
    (void)train({.mesh = {.data_parallel_shard = 6, .expert_parallel = 6}}, job);
  };
  EXPECT_THAT(message_of<ConfigError>(run),
              AllOf(HasSubstr("num_experts = 8"), HasSubstr("Set mesh.expert_parallel to 2")));
}

TEST(OddSizesOverTime, Continue_on_a_mesh_that_divides_heads_otherwise) {
  expect_trains({.job = {.num_layers = 2, .num_heads = 6, .num_key_heads = 2, .has_averages = true},
                 .layout = {.mesh = {.tensor_parallel = 2}},
                 .resumes_at = 1,
                 .rest = {.mesh = {.data_parallel_shard = 2, .tensor_parallel = 4}}});
}

TEST(OddSizesOverGloo, Of_heads_train_as_on_one_rank) {
  const LayoutJob job{.num_layers = 2, .num_heads = 3, .num_key_heads = 3};
  expect_same(train({.mesh = {.tensor_parallel = 2}}, job, RankBackend::kGloo), on_one_rank(job), tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test::odd_sizes_test
