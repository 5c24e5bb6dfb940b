// A head computes gradients in forward only if the backward follows directly, which it learns from the pipeline.
#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "d9d/core/autograd/boundary.h"

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::pipeline_head_test {
namespace {

using pipeline::expect_same;
using pipeline::in_one_piece;
using pipeline::kNumMicrobatches;
using pipeline::kNumSteps;
using pipeline::train;
using pipeline::Trained;

// Counts the vocabulary gradients that would be kept by a head that computes them in forward, as on a GPU.
class CountingVocabulary final : public VocabularyContext {
 public:
  at::Tensor cross_entropy(const at::Tensor& hidden_states, const HeadWeights& weights, const at::Tensor& labels,
                           const HeadLoss& options) const override {
    at::Tensor loss = local_.cross_entropy(hidden_states, weights, labels, options);
    if (options.gradients == HeadGradients::kInBackward) return loss;
    ++num_in_forward_;
    most_kept_ = std::max(most_kept_, ++num_kept_);
    on_backward({loss}, [this] { --num_kept_; });
    return loss;
  }
  at::Tensor logits(const at::Tensor& hidden_states, const HeadWeights& weights) const override {
    return local_.logits(hidden_states, weights);
  }

  [[nodiscard]] std::int64_t num_in_forward() const { return num_in_forward_; }
  [[nodiscard]] std::int64_t most_kept() const { return most_kept_; }

 private:
  LocalVocabularyContext local_;
  mutable std::int64_t num_in_forward_ = 0, num_kept_ = 0, most_kept_ = 0;
};

// The number of microbatches, over all steps, whose gradients the head computes in forward.
std::int64_t num_in_forward(const DeviceMeshParameters& mesh, const PipelineScheduleConfig& schedule) {
  const auto vocabulary = std::make_shared<CountingVocabulary>();
  expect_same(train({.mesh = mesh, .schedule = schedule, .vocabulary = vocabulary}), in_one_piece());
  EXPECT_EQ(vocabulary->most_kept(), 1);
  return vocabulary->num_in_forward();
}

TEST(PipelineHead, Keeps_one_gradient_of_the_vocabulary_whichever_schedule_runs) {
  constexpr std::int64_t kAll = kNumMicrobatches * kNumSteps;
  EXPECT_EQ(num_in_forward({}, {}), kAll);
  EXPECT_EQ(num_in_forward({.pipeline_parallel = 2}, GPipeScheduleConfig{}), kNumSteps);  // the last of each step
  EXPECT_EQ(num_in_forward({.pipeline_parallel = 4}, GPipeScheduleConfig{}), kNumSteps);
  EXPECT_EQ(num_in_forward({.pipeline_parallel = 2}, OneFOneBScheduleConfig{}), kAll);
  EXPECT_EQ(num_in_forward({.pipeline_parallel = 4}, OneFOneBScheduleConfig{.zero_bubble = true}), kAll);
  for (const PipelineScheduleConfig& schedule : pipeline::schedules()) {
    EXPECT_GE(num_in_forward({.pipeline_parallel = 2}, schedule), kNumSteps) << schedule_of(schedule).name;
  }
}

}  // namespace
}  // namespace d9d::test::pipeline_head_test
