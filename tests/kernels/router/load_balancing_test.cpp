#include "d9d/kernels/router/load_balancing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/kernels/router/topk_router.h"

#include "tests/kernels/op_testing.h"
#include "tests/support/python.h"

namespace d9d::kernels::load_balancing_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& counts, std::int64_t top_k) {
  return load_balancing_loss({.probability_sums = expert_probability_sums(logits), .counts = counts, .top_k = top_k});
}

TEST(LoadBalancingLoss, Is_top_k_when_perfectly_balanced) {
  const auto loss = loss_of(at::zeros({6, 4}, at::kDouble), at::full({4}, 3, at::kLong), 2);
  EXPECT_DOUBLE_EQ(loss.item<double>(), 2.0);
}

// transformers takes the mean of the probabilities in float32.
TEST(LoadBalancingLoss, Equals_that_of_transformers) {
  const auto oracle = nlohmann::json::parse(test::run_python("tests/kernels/router/load_balancing_oracle.py", {}));
  const auto num_experts = oracle["num_experts"].get<std::int64_t>(), top_k = oracle["top_k"].get<std::int64_t>();
  const auto logits =
      leaf(at::tensor(oracle["logits"].get<std::vector<double>>(), at::kDouble).view({-1, num_experts}));
  const auto chosen = topk_router({.logits = logits.detach(), .top_k = top_k}).indices;
  const auto loss = loss_of(logits, at::bincount(chosen.flatten(), {}, num_experts), top_k);
  backward({loss}, {{}});
  EXPECT_NEAR(loss.item<double>(), oracle["loss"].get<double>(), 1e-6);
  const auto grad = at::tensor(oracle["grad"].get<std::vector<double>>(), at::kDouble).view_as(logits);
  EXPECT_LT((logits.grad() - grad).abs().max().item<double>(), 1e-6 * grad.abs().max().item<double>());
}

TEST(LoadBalancingLoss, Is_zero_when_nothing_was_counted) {
  const auto loss = loss_of(values({6, 4}, 1), at::zeros({4}, at::kLong), 2);
  EXPECT_EQ(loss.item<double>(), 0.0);
}

TEST(LoadBalancingLoss, Is_the_number_of_experts_when_one_gets_everything) {
  const auto logits = at::tensor({100.0, 0.0, 0.0}, at::kDouble).expand({5, 3});
  EXPECT_NEAR(loss_of(logits, at::tensor({5, 0, 0}, at::kLong), 1).item<double>(), 3.0, 1e-12);
}

TEST(LoadBalancingLoss, Adds_up_over_parts_of_the_tokens_with_the_counts_of_all) {
  const auto logits = values({12, 4}, 1);
  const auto counts = at::tensor({9, 1, 6, 8}, at::kLong);
  const auto whole = loss_of(logits, counts, 2);
  const auto first = loss_of(logits.narrow(0, 0, 6), counts, 2);
  const auto second = loss_of(logits.narrow(0, 6, 6), counts, 2);
  EXPECT_LT(difference(first + second, whole), 1e-14);
}

TEST(LoadBalancingLoss, Pushes_logits_of_overloaded_experts_down) {
  const auto logits = leaf(at::zeros({2, 3}, at::kFloat));
  backward({loss_of(logits, at::tensor({2, 1, 0}, at::kLong), 1)}, {{}});
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
  EXPECT_THROW((void)loss_of(at::zeros({2, 3}), counts, 1), ConfigError);
  EXPECT_THROW(update_expert_bias_(bias, counts, 0.1), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::load_balancing_test
