#include "d9d/loop/component/weighted_loss.h"

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
  expect_refused({.loss = at::ones({}, at::kLong)}, "a floating loss, got Long");
  expect_refused({.loss = at::ones({})}, "a loss with a graph");
  expect_refused({.loss = leaf().detach()}, "a loss with a graph");
}

TEST(WeightedLoss, Refuses_what_is_no_weight_by_name) {
  expect_refused({.loss = leaf(), .loss_weight = at::Tensor()}, "a weight or none, got an undefined tensor");
  expect_refused({.loss = leaf(), .loss_weight = at::ones({4})}, "a weight without dims, got shape [4]");
  expect_refused({.loss = leaf(), .loss_weight = at::ones({}, at::kComplexFloat)}, "a real weight, got ComplexFloat");
}

TEST(WeightedLoss, Weighs_by_counts_and_by_one) {
  EXPECT_EQ(weighted_loss({.loss = leaf(), .loss_weight = at::full({}, 3, at::kLong)}).weight.item<double>(), 3);
  EXPECT_EQ(weighted_loss({.loss = leaf()}).weight.item<double>(), 1);
}

}  // namespace
}  // namespace d9d::weighted_loss_test
