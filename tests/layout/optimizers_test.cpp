// Every optimiser, with groups of parameters and averages of them, trains on each axis of a mesh as on one rank, and
// goes on from a checkpoint on another mesh.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"

namespace d9d::test::optimizers_test {
namespace {

class Optimizers : public ::testing::TestWithParam<UpdateRule> {};

LayoutJob job_with(UpdateRule rule) {
  return {.num_microbatches = 4, .update_rule = rule, .has_groups = true, .has_averages = true};
}

TEST_P(Optimizers, With_groups_train_on_each_axis_as_on_one_rank) {
  const LayoutJob job = job_with(GetParam());
  const LayoutResult expected = on_one_rank(job);
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_shard = 4}, DeviceMeshParameters{.data_parallel_replicate = 2},
        DeviceMeshParameters{.data_parallel_replicate = 2, .data_parallel_shard = 2},
        DeviceMeshParameters{.data_parallel_shard = 2, .tensor_parallel = 2},
        DeviceMeshParameters{.context_parallel_shard = 2}, DeviceMeshParameters{.pipeline_parallel = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    SCOPED_TRACE(to_source({.job = job, .layout = {.mesh = mesh}}));
    expect_same(train({.mesh = mesh}, job), expected, tolerance("fp64"));
  }
}

// Of replicas, flat slices, columns, experts on other ranks and stages with one embedding.
TEST(Averages, Of_each_axis_are_those_of_one_rank) {
  for (const bool has_experts : {false, true}) {
    const LayoutJob job{.family = has_experts ? "qwen3_moe" : "qwen3_dense",
                        .ties_embeddings = true,
                        .num_microbatches = 4,
                        .has_averages = true};
    const LayoutResult expected = on_one_rank(job);
    ASSERT_FALSE(expected.averages.empty());
    std::vector<DeviceMeshParameters> meshes = {{.data_parallel_shard = 4},
                                                {.data_parallel_replicate = 2},
                                                {.context_parallel_shard = 2},
                                                {.pipeline_parallel = 2},
                                                {.pipeline_parallel = 2, .data_parallel_shard = 2}};
    if (has_experts) {
      meshes.push_back({.data_parallel_shard = 4, .expert_parallel = 2});
    } else {
      meshes.push_back({.data_parallel_shard = 2, .tensor_parallel = 2});
    }
    for (const DeviceMeshParameters& mesh : meshes) {
      SCOPED_TRACE(to_source({.job = job, .layout = {.mesh = mesh}}));
      expect_same(train({.mesh = mesh}, job), expected, tolerance("fp64"));
    }
  }
}

TEST_P(Optimizers, Continue_from_a_checkpoint_on_another_mesh) {
  const LayoutJob job = job_with(GetParam());
  const LayoutCase resumed{.job = job,
                           .layout = {.mesh = {.data_parallel_shard = 4}},
                           .resumes_at = 1,
                           .rest = {.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2}}};
  EXPECT_EQ(fault_of(resumed), "");
}

TEST(Muon, Trains_experts_on_each_axis_as_on_one_rank) {
  const LayoutJob job{.family = "qwen3_moe", .num_microbatches = 12, .update_rule = UpdateRule::kMuon};
  const LayoutResult expected = on_one_rank(job);
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_replicate = 2, .expert_parallel = 2},
        DeviceMeshParameters{.data_parallel_shard = 4, .expert_parallel = 2},
        DeviceMeshParameters{.data_parallel_shard = 3},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 4, .expert_parallel = 2}}) {
    SCOPED_TRACE(to_source({.job = job, .layout = {.mesh = mesh}}));
    expect_same(train({.mesh = mesh}, job), expected, tolerance("fp64"));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Optimizers,
                         ::testing::Values(UpdateRule::kAdamW, UpdateRule::kSgd, UpdateRule::kAdam,
                                           UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kLion,
                                           UpdateRule::kMuon));

}  // namespace
}  // namespace d9d::test::optimizers_test
