// A V schedule on one GPU whose composed computations run at the same time: a forward allocates memory, which is filled
// with NaN immediately, while the concurrent backward frees inputs of the task, transfers and gradients.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/gpu_test.h"

namespace d9d::test::composed_training_cuda_test {
namespace {

using pipeline::expect_equal;
using pipeline::expect_same;
using pipeline::kNumSteps;
using pipeline::PipelineJob;
using pipeline::Rows;
using pipeline::train;
using pipeline::Trained;

class ComposedTrainingCuda : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);  // fills what is allocated with NaN
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }

  // Expects the results of stages that run one after the other, and the same bits in each run.
  static void expect_as_in_a_row(PipelineJob job) {
    job.is_on_gpu = true;
    job.schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2};
    const Trained expected = train(job);
    job.schedule = DualPipeVScheduleConfig{};
    const Trained actual = train(job);
    expect_same(actual, expected);
    for (int i = 0; i < 3; ++i) expect_equal(train(job), actual);
  }
};

TEST_F(ComposedTrainingCuda, Of_a_dense_model_is_as_in_a_row) { expect_as_in_a_row({}); }

TEST_F(ComposedTrainingCuda, Of_experts_with_an_auxiliary_loss_is_as_in_a_row) {
  expect_as_in_a_row({.has_experts = true});
}

TEST_F(ComposedTrainingCuda, Of_checkpointed_layers_and_a_tied_head_is_as_in_a_row) {
  expect_as_in_a_row({.checkpoints = true, .ties_embeddings = true});
}

TEST_F(ComposedTrainingCuda, Of_packed_documents_is_as_in_a_row) { expect_as_in_a_row({.rows = Rows::kPacked}); }

TEST_F(ComposedTrainingCuda, Of_adapters_is_as_in_a_row) {
  expect_as_in_a_row(
      {.has_experts = true,
       .adapters = LoraConfig{.module_name_pattern = ".*_proj", .params = {.r = 2, .alpha = 4.0, .dropout = 0.0}}});
  expect_as_in_a_row(
      {.adapters = DoraConfig{.module_name_pattern = ".*_proj", .params = {.r = 2, .alpha = 4.0, .dropout = 0.0}}});
}

// Gradients have a wider dtype than the parameters and are collected in buckets.
TEST_F(ComposedTrainingCuda, With_buckets_is_the_same_in_each_run) {
  PipelineJob job{.schedule = DualPipeVScheduleConfig{},
                  .dtype = at::kBFloat16,
                  .gradient_dtype = Dtype::kFloat32,
                  .is_on_gpu = true};
  const Trained expected = train(job);
  EXPECT_EQ(expected.logged.size(), static_cast<std::size_t>(kNumSteps));
  for (const auto& [name, values] : expected.parameters) EXPECT_TRUE(at::isfinite(values).all().item<bool>()) << name;
  for (int i = 0; i < 3; ++i) expect_equal(train(job), expected);
}

}  // namespace
}  // namespace d9d::test::composed_training_cuda_test
