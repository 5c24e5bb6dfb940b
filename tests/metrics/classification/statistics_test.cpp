// Against values by hand; classification_metric_test.cpp compares with scikit-learn.
#include "d9d/metrics/classification/statistics.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::statistics_test {
namespace {

at::Tensor numbers(std::initializer_list<double> values) { return at::tensor(values, at::kDouble); }

double micro(const ConfusionCounts& counts, const Statistic& statistic) {
  return statistic_of(counts, statistic, Average::kMicro, ZeroDivision::kNan).item<double>();
}

// Three of four samples of three classes are right.
const ConfusionCounts& three_of_four() {
  static const ConfusionCounts counts{.tp = numbers({1, 1, 1}),
                                      .fp = numbers({0, 1, 0}),
                                      .tn = numbers({2, 2, 3}),
                                      .fn = numbers({1, 0, 0}),
                                      .one_of_several = true};
  return counts;
}

TEST(Statistics, Of_accuracy_are_the_share_of_samples_of_several_classes) {
  EXPECT_DOUBLE_EQ(micro(three_of_four(), accuracy), 3.0 / 4);
  EXPECT_DOUBLE_EQ(micro(three_of_four(), one_vs_rest_accuracy), 10.0 / 12);
  ConfusionCounts labels = three_of_four();
  labels.one_of_several = false;
  EXPECT_DOUBLE_EQ(micro(labels, accuracy), 10.0 / 12);
}

TEST(Statistics, Of_f_beta_count_recall_more) {
  const ConfusionCounts counts{.tp = numbers({2}), .fp = numbers({1}), .tn = numbers({5}), .fn = numbers({1})};
  EXPECT_DOUBLE_EQ(micro(counts, f_beta(2)), 10.0 / 15);
}

TEST(Statistics, Are_weighted_by_the_samples_of_each_class) {
  const ConfusionCounts counts{
      .tp = numbers({1, 2, 1}), .fp = numbers({0, 0, 0}), .tn = numbers({0, 0, 0}), .fn = numbers({0, 1, 1})};
  const at::Tensor found = statistic_of(counts, recall, Average::kWeighted, ZeroDivision::kZero);
  EXPECT_DOUBLE_EQ(found.item<double>(), 2.0 / 3);
}

// The second class has no samples.
TEST(Statistics, Without_a_denominator_are_what_is_said) {
  const ConfusionCounts counts{
      .tp = numbers({1, 0}), .fp = numbers({0, 0}), .tn = numbers({0, 2}), .fn = numbers({1, 0})};
  const auto found = [&](Average average, ZeroDivision zero_division) {
    return statistic_of(counts, recall, average, zero_division);
  };
  EXPECT_DOUBLE_EQ(found(Average::kMacro, ZeroDivision::kZero).item<double>(), 0.25);
  EXPECT_DOUBLE_EQ(found(Average::kMacro, ZeroDivision::kOne).item<double>(), 0.75);
  EXPECT_DOUBLE_EQ(found(Average::kMacro, ZeroDivision::kNan).item<double>(), 0.5);
  EXPECT_DOUBLE_EQ(found(Average::kWeighted, ZeroDivision::kNan).item<double>(), 0.5);
  EXPECT_TRUE(std::isnan(found(Average::kPerClass, ZeroDivision::kNan)[1].item<double>()));
  EXPECT_DOUBLE_EQ(found(Average::kPerClass, ZeroDivision::kNan)[0].item<double>(), 0.5);
}

TEST(Statistics, Of_no_samples_are_what_is_said) {
  const at::Tensor none = numbers({0, 0});
  const ConfusionCounts counts{.tp = none, .fp = none, .tn = none, .fn = none};
  for (const Average average : {Average::kMicro, Average::kMacro, Average::kWeighted}) {
    EXPECT_EQ(statistic_of(counts, precision, average, ZeroDivision::kZero).item<double>(), 0);
    EXPECT_EQ(statistic_of(counts, precision, average, ZeroDivision::kOne).item<double>(), 1);
    EXPECT_TRUE(std::isnan(statistic_of(counts, precision, average, ZeroDivision::kNan).item<double>()));
  }
}

TEST(Statistics, Keep_NaN_that_is_no_zero_division) {
  const at::Tensor values = numbers({std::nan(""), 1}), all = at::ones({2}, at::kBool);
  EXPECT_TRUE(std::isnan(averaged(values, numbers({1, 1}), all, Average::kMacro).item<double>()));
}

}  // namespace
}  // namespace d9d::statistics_test
