#include "d9d/kernels/router/load_balancing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;

TEST(LoadBalancingLoss, Is_top_k_when_perfectly_balanced) {
  const auto loss = load_balancing_loss(
      {.logits = at::zeros({6, 4}, at::kDouble), .counts = at::full({4}, 3, at::kLong), .top_k = 2});
  EXPECT_DOUBLE_EQ(loss.item<double>(), 2.0);
}

TEST(LoadBalancingLoss, Is_the_number_of_experts_when_one_gets_everything) {
  const auto logits = at::tensor({100.0, 0.0, 0.0}, at::kDouble).expand({5, 3});
  EXPECT_NEAR(
      load_balancing_loss({.logits = logits, .counts = at::tensor({5, 0, 0}, at::kLong), .top_k = 1}).item<double>(),
      3.0, 1e-12);
}

TEST(LoadBalancingLoss, Adds_up_over_microbatches_of_one_step_with_the_counts_of_the_step) {
  const auto logits = values({12, 4}, 1);
  const auto counts = at::tensor({9, 1, 6, 8}, at::kLong);
  const auto whole = load_balancing_loss({.logits = logits, .counts = counts, .top_k = 2});
  const auto first = load_balancing_loss({.logits = logits.narrow(0, 0, 6), .counts = counts, .top_k = 2});
  const auto second = load_balancing_loss({.logits = logits.narrow(0, 6, 6), .counts = counts, .top_k = 2});
  EXPECT_LT(difference((first + second) / 2, whole), 1e-14);
}

TEST(LoadBalancingLoss, Pushes_logits_of_overloaded_experts_down) {
  const auto logits = leaf(at::zeros({2, 3}, at::kFloat));
  backward({load_balancing_loss({.logits = logits, .counts = at::tensor({2, 1, 0}, at::kLong), .top_k = 1})}, {{}});
  EXPECT_GT(logits.grad()[0][0].item<float>(), 0);
  EXPECT_LT(logits.grad()[0][2].item<float>(), 0);
}

TEST(UpdateExpertBias, Moves_each_bias_by_the_rate_towards_balance) {
  auto bias = at::tensor({0.5, 0.5, 0.5}, at::kFloat);
  update_expert_bias_(bias, at::tensor({9, 3, 6}, at::kLong), 0.25);
  EXPECT_TRUE(at::equal(bias, at::tensor({0.25, 0.75, 0.5}, at::kFloat)));
}

TEST(LoadBalancing, Rejects_counts_of_another_number_of_experts) {
  auto bias = at::zeros({3});
  const auto counts = at::zeros({4}, at::kLong);
  EXPECT_THROW((void)load_balancing_loss({.logits = at::zeros({2, 3}), .counts = counts, .top_k = 1}), ConfigError);
  EXPECT_THROW(update_expert_bias_(bias, counts, 0.1), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels
