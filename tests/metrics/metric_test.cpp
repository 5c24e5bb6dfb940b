#include "d9d/metrics/metric.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/compose_metric.h"

namespace d9d::metric_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Pair : Metric {
  at::Tensor compute() const override { return values; }
  std::vector<std::string> result_names() const override { return {"", "second"}; }
  std::vector<Accumulator*> accumulators() override { return {}; }
  at::Tensor values = at::tensor({1.0, 2.0}, at::kDouble);
};

MetricMap nested() {
  return {{"all", std::make_shared<ComposeMetric>(MetricMap{
                      {"inner", std::make_shared<ComposeMetric>(MetricMap{{"mean", std::make_shared<MeanMetric>()}})},
                      {"sum", std::make_shared<SumMetric>()}})},
          {"sum", std::make_shared<SumMetric>()}};
}

TEST(MetricMap, Gives_a_metric_by_name_and_class) {
  const MetricMap metrics = {{"sum", std::make_shared<SumMetric>()}, {"mean", std::make_shared<MeanMetric>()}};
  EXPECT_EQ(&metric_at<SumMetric>(metrics, "sum"), metrics.at("sum").get());
  for (const char* const name : {"mean", "product"}) {
    EXPECT_THAT(
        [&] { (void)metric_at<SumMetric>(metrics, name); },
        ThrowsMessage<StateError>(::testing::AllOf(HasSubstr(cat("a metric '", name, "'")), HasSubstr("{mean, sum}"))));
  }
}

TEST(MetricMap, Gives_a_metric_in_others_by_its_path) {
  const MetricMap metrics = nested();
  metric_at<MeanMetric>(metrics, "all/inner/mean").update(at::ones({}), at::ones({}));
  metric_at<SumMetric>(metrics, "all/sum").update(at::full({}, 3));
  metric_at<SumMetric>(metrics, "sum").update(at::full({}, 5));
  EXPECT_TRUE(at::equal(metric_at<ComposeMetric>(metrics, "all").compute(), at::tensor({1, 3}, at::kDouble)));
  EXPECT_EQ(metrics.at("sum")->compute().item<double>(), 5);
  EXPECT_THAT([&] { (void)metric_at<SumMetric>(metrics, "all/mean"); },
              ThrowsMessage<StateError>(HasSubstr("{all/inner/mean, all/sum, sum}")));
}

TEST(MetricMap, Has_leaves_with_names_of_their_own) {
  const MetricMap metrics = nested(), leaves = leaf_metrics(metrics);
  std::vector<std::string> names;
  for (const auto& [name, metric] : leaves) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("all/inner/mean", "all/sum", "sum"));
  EXPECT_EQ(leaves.at("sum"), metrics.at("sum"));
}

TEST(Metric, Has_a_series_for_each_result) {
  Pair pair;
  EXPECT_THAT(series_of("pair", pair), ElementsAre("pair", "pair/second"));
  EXPECT_TRUE(at::equal(results_of("pair", pair), pair.values));
  EXPECT_THAT(series_of("sum", SumMetric()), ElementsAre("sum"));
}

TEST(Metric, With_results_that_have_no_names_is_refused) {
  Pair pair;
  pair.values = at::ones({3});
  EXPECT_THAT([&] { (void)results_of("pair", pair); },
              ThrowsMessage<StateError>(HasSubstr("expected 2 elements of the metric 'pair'")));
}

}  // namespace
}  // namespace d9d::metric_test
