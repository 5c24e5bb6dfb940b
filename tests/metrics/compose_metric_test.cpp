#include "d9d/metrics/compose_metric.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/classification/classification_metric.h"

namespace d9d::compose_metric_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ComposeMetric, Has_the_results_of_its_children) {
  const auto sum = std::make_shared<SumMetric>();
  const auto recalls = std::make_shared<ClassificationMetric>(
      MulticlassProblem{.num_classes = 2, .average = Average::kPerClass, .class_names = {"cat", "dog"}}, recall);
  ComposeMetric compose({{"sum", sum}, {"recall", recalls}});
  EXPECT_THAT(series_of("scores", compose), ElementsAre("scores/recall/cat", "scores/recall/dog", "scores/sum"));
  EXPECT_THAT(compose.accumulators(), ElementsAre(recalls->accumulators()[0], sum->accumulators()[0]));
  EXPECT_TRUE(at::equal(compose.compute(), at::zeros({3}, at::kDouble)));
  sum->update(at::ones({2}));
  recalls->update(at::eye(2), at::tensor({0, 0}, at::kLong));
  EXPECT_TRUE(at::equal(compose.compute(), at::tensor({0.5, 0.0, 2.0}, at::kDouble)));
  compose.reset();
  EXPECT_FALSE(sum->accumulators()[0]->has_updates());
  EXPECT_FALSE(recalls->accumulators()[0]->has_updates());
}

// An override forgets more than accumulators.
TEST(ComposeMetric, Resets_its_children_as_they_say) {
  struct Counting : Metric {
    at::Tensor compute() const override { return at::ones({}); }
    std::vector<Accumulator*> accumulators() override { return {}; }
    void reset() override { ++num_resets; }
    int num_resets = 0;
  };
  const auto child = std::make_shared<Counting>();
  ComposeMetric({{"child", child}}).reset();
  EXPECT_EQ(child->num_resets, 1);
}

TEST(ComposeMetric, Without_metrics_or_names_is_refused) {
  EXPECT_THAT([] { ComposeMetric({}); }, ThrowsMessage<StateError>(HasSubstr("got none")));
  EXPECT_THAT([] { ComposeMetric({{"sum", nullptr}}); }, ThrowsMessage<StateError>(HasSubstr("got null as 'sum'")));
  EXPECT_THAT(
      [] {
        ComposeMetric({{"", std::make_shared<SumMetric>()}});
      },
      ThrowsMessage<StateError>(HasSubstr("a metric as ''")));
}

}  // namespace
}  // namespace d9d::compose_metric_test
