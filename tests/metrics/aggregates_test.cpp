#include "d9d/metrics/aggregates.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::aggregates_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }
double value_of(const Metric& metric) { return metric.compute().item<double>(); }

TEST(SumMetric, Adds_all_elements_until_reset) {
  SumMetric metric;
  EXPECT_EQ(value_of(metric), 0.0);
  metric.update(at::arange(4));
  metric.update(number(0.5));
  metric.update(at::empty({0, 3}));
  EXPECT_EQ(value_of(metric), 6.5);
  metric.reset();
  EXPECT_EQ(value_of(metric), 0.0);
}

TEST(SumMetric, Is_exact_for_more_than_float_can_count) {
  SumMetric metric;
  metric.update(at::full({2, 2}, 1 << 22, at::kInt));
  for (int i = 0; i < 3; ++i) metric.update(at::ones({}, at::kFloat));
  EXPECT_EQ(value_of(metric), (1 << 24) + 3);
}

TEST(MeanMetric, Weighs_all_values_until_reset) {
  MeanMetric metric;
  EXPECT_TRUE(std::isnan(value_of(metric)));
  metric.update(at::full({1}, 3.0, at::kFloat).requires_grad_(), at::full({}, 1, at::kLong));
  metric.update(number(1.0), number(3.0));
  metric.update(number(std::nan("")), number(0));  // a mean over nothing
  EXPECT_EQ(value_of(metric), 1.5);
  EXPECT_FALSE(metric.compute().requires_grad());
  metric.reset();
  metric.update(number(7.0), number(2.0));
  EXPECT_EQ(value_of(metric), 7.0);
}

TEST(MeanMetric, Weighs_each_element) {
  MeanMetric metric;
  const at::Tensor values = at::tensor({1.0, 2.0, std::nan(""), 4.0}, at::kDouble).view({2, 2});
  metric.update(values, at::tensor({1, 2, 0, 1}, at::kLong).view({2, 2}));
  metric.update(at::empty({0}), at::empty({0, 2}));
  EXPECT_EQ(value_of(metric), 9.0 / 4);
  EXPECT_THAT([&] { metric.update(values, at::ones({2})); },
              ThrowsMessage<StateError>(HasSubstr("a weight for each of the values [2, 2], got [2]")));
}

TEST(MeanMetric, Has_the_sums_of_which_it_is_the_quotient) {
  MeanMetric metric;
  EXPECT_TRUE(at::equal(metric.sums(), at::zeros({2}, at::kDouble)));
  metric.update(number(3), number(2));
  metric.update(number(1), number(4));
  EXPECT_TRUE(at::equal(metric.sums(), at::tensor({10, 6}, at::kDouble)));
}

TEST(ExtremeMetrics, Are_over_all_elements_until_reset) {
  MaxMetric largest;
  MinMetric smallest;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(value_of(largest), -kInfinity);
    EXPECT_EQ(value_of(smallest), kInfinity);
    for (const at::Tensor& values : {at::tensor({3, -5}, at::kInt).view({2, 1}), at::empty({0}), number(2.5)}) {
      largest.update(values);
      smallest.update(values);
    }
    EXPECT_EQ(value_of(largest), 3);
    EXPECT_EQ(value_of(smallest), -5);
    largest.update(number(std::nan("")));
    EXPECT_TRUE(std::isnan(value_of(largest)));
    largest.reset();
    smallest.reset();
  }
}

TEST(LastMetric, Has_the_last_value) {
  LastMetric metric;
  EXPECT_TRUE(std::isnan(value_of(metric)));
  metric.update(number(3));
  metric.update(at::full({1}, 0.25, at::kFloat).requires_grad_());
  EXPECT_EQ(value_of(metric), 0.25);
  EXPECT_THAT([&] { metric.update(at::ones({2})); }, ThrowsMessage<StateError>(HasSubstr("got [2]")));
}

}  // namespace
}  // namespace d9d::aggregates_test
