// Adapters train on each axis of a mesh as on one rank, and go on from a checkpoint on another mesh.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/low_rank_adapter.h"

#include "tests/layout/layout_case.h"
#include "tests/support/turns.h"

namespace d9d::test::adapters_test {
namespace {

struct Model {
  const char* family;
  bool ties_embeddings = false;
  bool has_magnitudes = false;
  double dropout = 0.0;
};

class Adapters : public ::testing::TestWithParam<Model> {};

LayoutJob job_of(const Model& model) {
  return {.family = model.family,
          .num_layers = 4,
          .ties_embeddings = model.ties_embeddings,
          .adapts = true,
          .has_magnitudes = model.has_magnitudes,
          .adapter_dropout = model.dropout,
          .num_microbatches = 4};
}

TEST_P(Adapters, Train_on_each_axis_as_on_one_rank) {
  const LayoutJob job = job_of(GetParam());
  const LayoutResult expected = on_one_rank(job);
  std::vector<Layout> layouts = {
      {.mesh = {.data_parallel_shard = 2}},
      {.mesh = {.data_parallel_shard = 4}, .checkpoints = Checkpoints::kNested, .keeps_master_weights = true},
      {.mesh = {.data_parallel_replicate = 2}},
      {.mesh = {.context_parallel_shard = 2}},
      {.mesh = {.pipeline_parallel = 2}},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = Schedule::kZeroBubble}};
  layouts.push_back({.mesh = {.tensor_parallel = 2}});
  layouts.push_back({.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2}});
  layouts.push_back({.mesh = {.context_parallel_shard = 2, .tensor_parallel = 2}});
  if (has_experts(job)) {
    layouts.push_back({.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}});
    layouts.push_back({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2}});
    layouts.push_back({.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 4}});
  }
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(to_source({.job = job, .layout = layout}));
    expect_same(train(layout, job), expected, tolerance("fp64"));
  }
}

TEST_P(Adapters, Continue_from_a_checkpoint_on_another_mesh) {
  const LayoutJob job = job_of(GetParam());
  const DeviceMeshParameters dense{.pipeline_parallel = 2, .tensor_parallel = 2};
  const DeviceMeshParameters experts{.pipeline_parallel = 2, .tensor_parallel = 2, .expert_parallel = 2};
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
    const bool is_adapter = is_adapter_parameter(name.substr(name.rfind(' ') + 1));
    EXPECT_TRUE(is_adapter || name.ends_with("norm.weight")) << name;
    EXPECT_TRUE(!name.starts_with("step 2") || gradient.abs().max().item<double>() > 0.0) << name;
  }
}

TEST(AdaptersOfHeads, Train_on_each_axis_as_on_one_rank) {
  const LayoutJob job{.num_layers = 2,
                      .ties_embeddings = true,
                      .adapts = true,
                      .heads = {Head::kCausalLM, Head::kClassification, Head::kEmbedding},
                      .num_microbatches = 4};
  const LayoutResult expected = on_one_rank(job);
  for (const Layout& layout : std::vector<Layout>{{.mesh = {.pipeline_parallel = 2}},
                                                  {.mesh = {.data_parallel_shard = 2}},
                                                  {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}},
                                                  {.mesh = {.tensor_parallel = 2}},
                                                  {.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}}}) {
    SCOPED_TRACE(to_source({.job = job, .layout = layout}));
    expect_same(train(layout, job), expected, tolerance("fp64"));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Adapters,
                         ::testing::ValuesIn(in_turn(
                             std::vector<Model>{Model{"qwen3_dense"}, Model{"qwen3_dense", /*ties_embeddings=*/true},
                                                Model{"qwen3_moe"}, Model{"qwen2"},
                                                Model{.family = "qwen3_dense", .has_magnitudes = true},
                                                Model{.family = "qwen3_moe", .has_magnitudes = true},
                                                Model{.family = "qwen2", .has_magnitudes = true},
                                                Model{.family = "qwen3_dense", .dropout = 0.25},
                                                Model{.family = "qwen3_moe", .has_magnitudes = true, .dropout = 0.25},
                                                Model{.family = "qwen2", .ties_embeddings = true, .dropout = 0.25}},
                             3)),
                         [](const auto& each) {
                           return cat(each.param.family, each.param.ties_embeddings ? "_tied" : "",
                                      each.param.has_magnitudes ? "_with_magnitudes" : "",
                                      each.param.dropout > 0 ? "_with_dropout" : "");
                         });

}  // namespace
}  // namespace d9d::test::adapters_test
