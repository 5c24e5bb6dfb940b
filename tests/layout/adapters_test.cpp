// Adapters train on each axis of a mesh as on one rank, and go on from a checkpoint on another mesh.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"

namespace d9d::test::adapters_test {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class Adapters : public ::testing::TestWithParam<const char*> {};

LayoutJob job_of(const std::string& family) {
  return {.family = family, .num_layers = 4, .adapts = true, .num_microbatches = 4};
}

TEST_P(Adapters, Train_on_each_axis_as_on_one_rank) {
  const LayoutJob job = job_of(GetParam());
  const LayoutResult expected = train({}, job);
  std::vector<Layout> layouts = {
      {.mesh = {.data_parallel_shard = 2}},
      {.mesh = {.data_parallel_shard = 4}, .checkpoints = Checkpoints::kNested, .keeps_master_weights = true},
      {.mesh = {.data_parallel_replicate = 2}},
      {.mesh = {.context_parallel_shard = 2}},
      {.mesh = {.pipeline_parallel = 2}},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = Schedule::kZeroBubble}};
  if (has_experts(job)) {  // for which tensor parallelism is not built
    layouts.push_back({.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}});
    layouts.push_back({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2}});
  } else {
    layouts.push_back({.mesh = {.tensor_parallel = 2}});
    layouts.push_back({.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2}});
  }
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(to_source({.job = job, .layout = layout}));
    expect_same(train(layout, job), expected, tolerance("fp64"));
  }
}

TEST_P(Adapters, Continue_from_a_checkpoint_on_another_mesh) {
  const LayoutJob job = job_of(GetParam());
  const DeviceMeshParameters dense{.pipeline_parallel = 2, .tensor_parallel = 2};
  const DeviceMeshParameters experts{.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2};
  const LayoutCase resumed{.job = job,
                           .layout = {.mesh = {.data_parallel_shard = 4}},
                           .resumes_at = 1,
                           .rest = {.mesh = has_experts(job) ? experts : dense}};
  EXPECT_EQ(fault_of(resumed), "");
}

TEST_P(Adapters, Alone_have_gradients_beside_norms) {
  const LayoutResult result = train({.mesh = {.data_parallel_shard = 2}}, job_of(GetParam()));
  EXPECT_FALSE(result.gradients.empty());
  for (const auto& [name, gradient] : result.gradients) {
    EXPECT_THAT(name, AnyOf(EndsWith("lora_A.weight"), EndsWith("lora_B.weight"), HasSubstr("norm.weight")));
    EXPECT_TRUE(!name.starts_with("step 2") || gradient.abs().max().item<double>() > 0.0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Adapters, ::testing::Values("qwen3_dense", "qwen3_moe", "qwen2"));

}  // namespace
}  // namespace d9d::test::adapters_test
