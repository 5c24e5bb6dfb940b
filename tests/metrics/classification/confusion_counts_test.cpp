#include "d9d/metrics/classification/confusion_counts.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"

namespace d9d::confusion_counts_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor integers(std::initializer_list<std::int64_t> values) { return at::tensor(values, at::kLong); }

void expect_counts(const ConfusionCounts& counts, const std::vector<std::vector<std::int64_t>>& rows) {
  const at::Tensor found = at::stack({counts.tp, counts.fp, counts.tn, counts.fn});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal(found[static_cast<std::int64_t>(i)], at::tensor(rows[i], at::kLong))) << i << "\n" << found;
  }
}

TEST(ConfusionCounts, Are_of_each_label) {
  const at::Tensor predicted = integers({1, 0, 1, 1, 0, 0}).view({3, 2}).to(at::kBool);
  const at::Tensor targets = integers({1, 1, 0, 1, 0, 1}).view({3, 2});
  expect_counts(count_labels(predicted, targets), {{1, 1}, {1, 0}, {1, 0}, {0, 2}});
  expect_counts(count_labels(predicted.view({1, 3, 2}), targets.view({1, 3, 2}).to(at::kBool)),
                {{1, 1}, {1, 0}, {1, 0}, {0, 2}});
  EXPECT_FALSE(count_labels(predicted, targets).one_of_several);
}

TEST(ConfusionCounts, Are_of_each_class) {
  const at::Tensor predicted = integers({0, 2, 2, 1}).view({2, 2, 1}), targets = integers({0, 2, 0, 1}).view({2, 2});
  expect_counts(count_classes(predicted, targets, 4), {{1, 1, 1, 0}, {0, 0, 1, 0}, {2, 3, 2, 4}, {1, 0, 0, 0}});
  EXPECT_TRUE(count_classes(predicted, targets, 4).one_of_several);
}

TEST(ConfusionCounts, Leave_out_what_is_ignored) {
  const at::Tensor predicted = integers({0, 1, 1, 0}).unsqueeze(1);
  const at::Tensor targets = integers({0, kIgnoreIndex, 0, kIgnoreIndex});
  expect_counts(count_classes(predicted, targets, 2), {{1, 0}, {0, 1}, {0, 1}, {1, 0}});
  expect_counts(count_labels(predicted.to(at::kBool), targets.unsqueeze(1)), {{0}, {1}, {1}, {0}});
}

TEST(ConfusionCounts, Are_zero_without_samples) {
  expect_counts(count_classes(at::empty({0, 1}, at::kLong), at::empty({0}), 2), {{0, 0}, {0, 0}, {0, 0}, {0, 0}});
  expect_counts(count_labels(at::empty({0, 2}, at::kBool), at::empty({0, 2})), {{0, 0}, {0, 0}, {0, 0}, {0, 0}});
}

TEST(ConfusionCounts, Are_of_the_classes_with_the_highest_scores) {
  const at::Tensor scores = at::tensor({0.1, 0.7, 0.2, 0.5, 0.1, 0.4}, at::kDouble).view({2, 3});
  EXPECT_TRUE(at::equal(top_classes(scores, 1), integers({1, 0}).view({2, 1})));
  EXPECT_TRUE(at::equal(top_classes(scores, 2), integers({1, 2, 0, 2}).view({2, 2})));
}

TEST(ConfusionCounts, Take_targets_of_several_shapes) {
  const at::Tensor scores = at::zeros({2, 3}), classes = integers({2, 0});
  const at::Tensor one_hot = at::one_hot(classes, 3);
  for (const at::Tensor& targets : {classes, classes.unsqueeze(1), one_hot, one_hot.to(at::kBool),
                                    one_hot.to(at::kByte), one_hot.to(at::kBFloat16)}) {
    EXPECT_TRUE(at::equal(classes_of(targets, scores), classes)) << targets;
  }
}

TEST(ConfusionCounts, Do_not_count_samples_whose_one_hot_targets_are_ignored) {
  const at::Tensor one_hot = at::one_hot(integers({2, 0}), 3);
  one_hot[1].fill_(kIgnoreIndex);
  for (const at::ScalarType dtype : {at::kLong, at::kFloat, at::kBFloat16}) {
    EXPECT_TRUE(at::equal(classes_of(one_hot.to(dtype), at::zeros({2, 3})), integers({2, kIgnoreIndex})));
  }
}

TEST(ConfusionCounts, Refuse_other_shapes) {
  EXPECT_THAT(
      [] {
        (void)count_labels(at::ones({2, 3}), at::ones({3, 2}));
      },
      ThrowsMessage<StateError>(HasSubstr("the shape of the predictions [2, 3], got [3, 2]")));
  EXPECT_THAT(
      [] {
        (void)count_classes(at::ones({2, 1}), at::ones({3}), 3);
      },
      ThrowsMessage<StateError>(HasSubstr("for each sample of predictions [2, 1] ([..., k]), got [3]")));
  EXPECT_THAT(
      [] {
        (void)classes_of(at::ones({2, 4}), at::ones({2, 3}));
      },
      ThrowsMessage<StateError>(HasSubstr("one-hot [2, 3] for scores [2, 3], got [2, 4]")));
}

}  // namespace
}  // namespace d9d::confusion_counts_test
