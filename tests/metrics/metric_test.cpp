#include "d9d/metrics/metric.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::metric_test {
namespace {

TEST(SumMetric, Adds_all_elements_until_reset) {
  SumMetric metric;
  EXPECT_EQ(metric.compute().item<double>(), 0.0);
  metric.update(at::arange(4));
  metric.update(at::tensor(0.5, at::kDouble));
  EXPECT_EQ(metric.compute().item<double>(), 6.5);
  metric.reset();
  EXPECT_EQ(metric.compute().item<double>(), 0.0);
}

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }

TEST(MeanMetric, Weighs_all_values_until_reset) {
  MeanMetric metric;
  EXPECT_TRUE(std::isnan(metric.compute().item<double>()));
  metric.update(at::full({1}, 3.0, at::kFloat).requires_grad_(), at::full({}, 1, at::kLong));
  metric.update(number(1.0), number(3.0));
  metric.update(number(std::nan("")), number(0));  // a mean over nothing
  EXPECT_EQ(metric.compute().item<double>(), 1.5);
  EXPECT_FALSE(metric.compute().requires_grad());
  metric.reset();
  metric.update(number(7.0), number(2.0));
  EXPECT_EQ(metric.compute().item<double>(), 7.0);
}

TEST(MeanMetric, Has_the_sums_of_which_it_is_the_quotient) {
  MeanMetric metric;
  EXPECT_TRUE(at::equal(metric.sums(), at::zeros({2}, at::kDouble)));
  metric.update(number(3), number(2));
  metric.update(number(1), number(4));
  EXPECT_TRUE(at::equal(metric.sums(), at::tensor({10, 6}, at::kDouble)));
}

TEST(MetricMap, Gives_a_metric_by_name_and_class) {
  const MetricMap metrics = {{"sum", std::make_shared<SumMetric>()}, {"mean", std::make_shared<MeanMetric>()}};
  EXPECT_EQ(&metric_at<SumMetric>(metrics, "sum"), metrics.at("sum").get());
  for (const char* const name : {"mean", "product"}) {
    try {
      (void)metric_at<SumMetric>(metrics, name);
      FAIL() << name;
    } catch (const StateError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(cat("a metric '", name, "'")));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("{mean, sum}"));
    }
  }
}

}  // namespace
}  // namespace d9d::metric_test
