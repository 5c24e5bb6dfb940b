#include "d9d/metrics/throughput_metric.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::throughput_metric_test {
namespace {

double value_of(const Metric& metric) { return metric.compute().item<double>(); }

TEST(ThroughputMetric, Divides_counts_by_the_time_until_the_last_update) {
  double now = 100;
  ThroughputMetric metric([&] { return now; });
  EXPECT_TRUE(std::isnan(value_of(metric)));
  now += 2;
  metric.update(at::full({2}, 5, at::kLong));
  EXPECT_EQ(value_of(metric), 5);
  now += 3;
  metric.update(at::full({}, 30.0));
  now += 50;  // is no time of updates
  EXPECT_EQ(value_of(metric), 8);
  metric.reset();
  now += 4;
  metric.update(at::full({}, 2.0));
  EXPECT_EQ(value_of(metric), 0.5);
}

TEST(ThroughputMetric, Goes_on_with_the_time_that_it_has_loaded) {
  double now = 0;
  ThroughputMetric before([&] { return now; });
  now = 6;
  before.update(at::full({}, 12.0));
  ThroughputMetric after([&] { return now; });
  for (std::size_t i = 0; i < 2; ++i) after.accumulators()[i]->update(before.accumulators()[i]->value());
  now = 8;
  after.update(at::full({}, 12.0));
  EXPECT_EQ(value_of(after), 3);
}

TEST(ThroughputMetric, Has_a_clock_that_goes_on) {
  ThroughputMetric metric;
  metric.update(at::ones({}));
  EXPECT_GT(value_of(metric), 0);
}

}  // namespace
}  // namespace d9d::throughput_metric_test
