// Against values by hand; classification_metric_test.cpp compares with scikit-learn.
#include "d9d/metrics/classification/curve_metric.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"

namespace d9d::curve_metric_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor numbers(std::initializer_list<double> values) { return at::tensor(values, at::kDouble); }
double value_of(const Metric& metric) { return metric.compute().item<double>(); }

// The share of pairs, one by one.
double share_of_pairs(const at::Tensor& scores, const at::Tensor& labels) {
  const at::Tensor positive = scores.index({labels == 1}), negative = scores.index({labels == 0});
  const at::Tensor difference = positive.unsqueeze(1) - negative.unsqueeze(0);
  return (difference.gt(0).sum() + 0.5 * difference.eq(0).sum()).item<double>() /
         static_cast<double>(difference.numel());
}

TEST(CurveMetric, Comes_as_close_to_all_scores_as_its_bins_are_small) {
  const at::Tensor number = at::arange(2000, at::kDouble);
  const at::Tensor scores = at::sin(number * number).square(),
                   labels = (at::sin(number * 3.3) + scores > 0.7).to(at::kLong);
  const double expected = share_of_pairs(scores, labels);
  for (const auto& [num_bins, error] : {std::pair(10'000, 1e-4), std::pair(100'000, 1e-5)}) {
    CurveMetric metric({.num_bins = num_bins}, auroc);
    metric.update(scores, labels);
    EXPECT_NEAR(value_of(metric), expected, error);
  }
}

TEST(CurveMetric, Of_one_class_is_one_half) {
  CurveMetric area({}, auroc), precisions({}, average_precision);
  EXPECT_EQ(value_of(area), 0.5);
  EXPECT_EQ(value_of(precisions), 0);
  for (const double label : {0.0, 1.0}) {
    area.reset();
    area.update(numbers({0.2, 0.9}), at::full({2}, label));
    EXPECT_EQ(value_of(area), 0.5);
  }
}

TEST(CurveMetric, Takes_scores_beyond_the_range_as_its_ends) {
  CurveMetric metric({.num_bins = 4}, auroc);
  metric.update(numbers({-7, 0.1, 1, HUGE_VAL, -HUGE_VAL}).view({5, 1}), numbers({0, 1, 1, 1, 0}));
  EXPECT_EQ(value_of(metric), (2 * 0.5 + 2 * 2) / 6);
  EXPECT_TRUE(at::equal(metric.counts().positive, numbers({1, 0, 0, 2}).unsqueeze(0)));
}

TEST(CurveMetric, Takes_probabilities_as_targets_and_leaves_out_ignored_ones) {
  CurveMetric metric({.num_bins = 2}, auroc);
  metric.update(numbers({0.2, 0.8, 0.8}), numbers({0.25, 0.5, static_cast<double>(kIgnoreIndex)}));
  EXPECT_TRUE(at::equal(metric.counts().positive, numbers({0.25, 0.5}).unsqueeze(0)));
  EXPECT_TRUE(at::equal(metric.counts().negative, numbers({0.75, 0.5}).unsqueeze(0)));
  EXPECT_DOUBLE_EQ(value_of(metric), (0.75 * (0.125 + 0.5) + 0.5 * 0.25) / (0.75 * 1.25));
}

TEST(CurveMetric, Is_NaN_after_a_score_that_is) {
  for (const Curve& curve : {Curve(auroc), Curve(average_precision)}) {
    CurveMetric metric({}, curve);
    metric.update(numbers({kNan, 0.5, 0.25}), numbers({1, 0, 1}));
    EXPECT_TRUE(std::isnan(value_of(metric)));
    metric.reset();
    metric.update(numbers({kNan, 0.5, 0.25}), numbers({static_cast<double>(kIgnoreIndex), 0, 1}));
    EXPECT_FALSE(std::isnan(value_of(metric)));
  }
}

TEST(CurveMetric, Is_NaN_after_a_target_that_is_no_class) {
  for (const double target : {-1.0, 1.5, 2.0, kNan}) {
    CurveMetric metric({}, auroc);
    metric.update(numbers({0.1, 0.5}), numbers({1, 0}));
    metric.update(numbers({0.2, 0.5}), numbers({target, 0}));
    EXPECT_TRUE(std::isnan(value_of(metric))) << target;
  }
  for (const std::int64_t target : {-1, 3}) {
    CurveMetric metric({.num_classes = 3, .average = Average::kMacro}, average_precision);
    metric.update(at::rand({2, 3}), at::tensor({target, std::int64_t{2}}));
    EXPECT_TRUE(std::isnan(value_of(metric))) << target;
    metric.reset();
    metric.update(at::rand({2, 3}), at::tensor({kIgnoreIndex, std::int64_t{2}}));
    EXPECT_FALSE(std::isnan(value_of(metric)));
  }
}

// In float32 the bin would stay at 2^24.
TEST(CurveMetric, Counts_more_samples_in_a_bin_than_float_can) {
  CurveMetric metric({.num_bins = 2}, auroc);
  metric.accumulators()[0]->update(numbers({0x1p24, 0, 0, 0x1p53 - 4}).view({2, 1, 2}));
  for (int i = 0; i < 3; ++i) metric.update(numbers({0.1, 0.9}), numbers({1, 0}));
  EXPECT_TRUE(at::equal(metric.counts().positive, numbers({0x1p24 + 3, 0}).unsqueeze(0)));
  EXPECT_TRUE(at::equal(metric.counts().negative, numbers({0, 0x1p53 - 1}).unsqueeze(0)));
  EXPECT_EQ(value_of(metric), 0);
}

TEST(CurveMetric, Names_its_classes) {
  const CurveMetric classes({.num_classes = 3, .average = Average::kPerClass, .class_names = {"a", "b", "c"}}, auroc);
  EXPECT_THAT(classes.result_names(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(CurveMetric({}, auroc).result_names(), ElementsAre(""));
}

TEST(CurveMetric, Is_refused_without_what_it_needs) {
  const auto refusal = [](const CurveMetricConfig& config, const Curve& curve) {
    try {
      const CurveMetric metric(config, curve);
      return std::string("none");
    } catch (const StateError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refusal({.num_classes = 1}, auroc), HasSubstr("num_classes >= 2"));
  EXPECT_THAT(refusal({.num_bins = 0}, auroc), HasSubstr("num_bins >= 1"));
  EXPECT_THAT(refusal({.num_classes = 3}, auroc), HasSubstr("got none of 3"));
  EXPECT_THAT(refusal({.average = Average::kMacro}, auroc), HasSubstr("got one of 2"));
  EXPECT_THAT(refusal({}, nullptr), HasSubstr("got null"));
  CurveMetric binary({}, auroc), classes({.num_classes = 3, .average = Average::kMacro}, auroc);
  EXPECT_THROW(binary.update(at::ones({2}), at::ones({3})), StateError);
  EXPECT_THROW(classes.update(at::ones({2, 2}), at::ones({2})), StateError);
  EXPECT_THROW(classes.update(at::ones({2, 3}), at::ones({3})), StateError);
}

}  // namespace
}  // namespace d9d::curve_metric_test
