#include "d9d/metrics/metric.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace d9d::metric_test
