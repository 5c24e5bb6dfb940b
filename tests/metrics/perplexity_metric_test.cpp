#include "d9d/metrics/perplexity_metric.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::perplexity_metric_test {
namespace {

TEST(PerplexityMetric, Is_exp_of_the_mean_over_all_tokens) {
  PerplexityMetric metric;
  EXPECT_TRUE(std::isnan(metric.compute().item<double>()));
  // Of a uniform distribution over n tokens the perplexity is n.
  metric.update(at::full({2, 3}, std::log(7.0), at::kDouble), at::tensor({1, 1, 0, 1, 0, 0}, at::kLong).view({2, 3}));
  EXPECT_DOUBLE_EQ(metric.compute().item<double>(), 7);
  metric.update(at::full({}, std::log(49.0), at::kDouble), at::full({}, 3, at::kLong));  // a mean over three
  EXPECT_DOUBLE_EQ(metric.compute().item<double>(), std::pow(7 * 49, 0.5));
}

}  // namespace
}  // namespace d9d::perplexity_metric_test
