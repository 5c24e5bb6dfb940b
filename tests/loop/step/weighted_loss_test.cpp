#include "d9d/loop/step/weighted_loss.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::weighted_loss_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor leaf(std::vector<std::int64_t> shape = {}) { return at::ones(shape).requires_grad_(); }

void expect_refused(const LossResult& result, const char* what) {
  EXPECT_THAT([&] { (void)weighted_loss(result); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("TrainTask::compute_loss to return "), HasSubstr(what))));
}

TEST(WeightedLoss, Refuses_what_is_no_loss_by_name) {
  expect_refused({.loss = at::Tensor()}, "a loss, got an undefined tensor");
  expect_refused({.loss = leaf({8})}, "a loss without dims, got shape [8]");
  expect_refused({.loss = leaf({1})}, "a loss without dims, got shape [1]");
  expect_refused({.loss = at::ones({}, at::kLong)}, "a loss of a floating dtype, got Long");
  expect_refused({.loss = at::ones({})}, "a loss with a graph");
  expect_refused({.loss = leaf().detach()}, "a loss with a graph");
}

TEST(WeightedLoss, Refuses_what_is_no_weight_by_name) {
  expect_refused({.loss = leaf(), .loss_weight = at::Tensor()}, "a weight or none, got an undefined tensor");
  expect_refused({.loss = leaf(), .loss_weight = at::ones({4})}, "a weight without dims, got shape [4]");
  expect_refused({.loss = leaf(), .loss_weight = at::ones({}, at::kComplexFloat)}, "a real weight, got ComplexFloat");
}

LossScales shares_of(double tokens, double sequences) {
  const auto scalar = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  return {.of = {{"sequences", scalar(sequences)}, {"tokens", scalar(tokens)}}, .weight = scalar(1)};
}

TEST(WeightedLoss, Adds_several_losses_by_their_shares) {
  const at::Tensor tokens = at::full({}, 3.0, at::kDouble).requires_grad_();
  const at::Tensor sequences = at::full({}, 5.0, at::kBFloat16).requires_grad_();
  const WeightedLoss sum = weighted_loss({.losses = {{"tokens", tokens}, {"sequences", sequences}}}, shares_of(2, 0.5));
  EXPECT_EQ(sum.loss.item<double>(), 2 * 3 + 0.5 * 5);
  EXPECT_EQ(sum.losses.at("sequences").item<double>(), 5);
  sum.loss.backward();
  EXPECT_EQ(tokens.grad().item<double>(), 2);
  EXPECT_EQ(sequences.grad().item<double>(), 0.5);
}

TEST(WeightedLoss, Refuses_losses_without_weights_and_weights_without_losses) {
  const auto text_of = [](const LossResult& result, const LossScales& shares) -> std::string {
    try {
      (void)weighted_loss(result, shares);
    } catch (const StateError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text_of({.losses = {{"tokens", leaf()}}}, {}), HasSubstr("one loss, got {tokens}. Tell what each"));
  EXPECT_THAT(text_of({.losses = {{"tokens", leaf()}}}, shares_of(1, 1)),
              HasSubstr("{sequences, tokens}, got {tokens}"));
  EXPECT_THAT(text_of({.loss = leaf()}, shares_of(1, 1)), HasSubstr("LossResult::losses alone"));
  EXPECT_THAT(text_of({.losses = {{"tokens", leaf({2})}, {"sequences", leaf()}}}, shares_of(1, 1)),
              HasSubstr("the loss 'tokens' without dims, got shape [2]"));
}

TEST(WeightedLoss, Weighs_by_counts_and_by_one) {
  EXPECT_EQ(weighted_loss({.loss = leaf(), .loss_weight = at::full({}, 3, at::kLong)}).weight.item<double>(), 3);
  EXPECT_EQ(weighted_loss({.loss = leaf()}).weight.item<double>(), 1);
  EXPECT_EQ(weighted_loss({.loss = leaf(), .loss_weight = 2.5}).weight.item<double>(), 2.5);
  EXPECT_EQ(weighted_loss({.loss = leaf(), .loss_weight = 2}).weight.item<double>(), 2);
}

}  // namespace
}  // namespace d9d::weighted_loss_test
