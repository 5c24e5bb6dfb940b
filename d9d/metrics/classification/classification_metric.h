// Accuracy, precision, recall, F1, F-beta or one's own statistic of predictions, over microbatches and ranks.
//
// Example
//   ClassificationMetric spam(BinaryProblem{}, f1);
//   spam.update(probabilities, labels);                          // both [B]
//   ClassificationMetric topics(MulticlassProblem{.num_classes = 4, .average = Average::kMacro}, recall);
//   topics.update(scores, classes);                              // [B, 4] and [B]
//   ClassificationMetric tags(MultilabelProblem{.num_labels = 9, .average = Average::kPerClass}, f_beta(2));
//   tags.update(probabilities, labels);                          // both [B, 9]
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/classification/statistics.h"
#include "d9d/metrics/metric.h"

namespace d9d {

// Yes or no. Scores and targets have any one shape.
struct BinaryProblem {
  double threshold = 0.5;  // a higher score is a yes, compared in the dtype of the scores; NaN is a no
};

// One of several classes. Scores are [..., num_classes], logits or probabilities; targets are classes_of() them.
struct MulticlassProblem {
  std::int64_t num_classes = 0;
  std::int64_t top_k = 1;  // how many classes are predicted of a sample, those with the highest scores
  std::optional<Average> average = std::nullopt;
  std::vector<std::string> class_names = {};  // of series "<metric>/<class>" under kPerClass; none: numbers from 0
};

// Any number of labels. Scores and targets are [..., num_labels].
struct MultilabelProblem {
  std::int64_t num_labels = 0;
  double threshold = 0.5;
  std::optional<Average> average = std::nullopt;
  std::vector<std::string> label_names = {};
};

using ClassificationProblem = std::variant<BinaryProblem, MulticlassProblem, MultilabelProblem>;

// A scalar, or [C] under Average::kPerClass. Counts are exact up to 2^53. Targets are 0, 1 or classes; those that are
// kIgnoreIndex do not count, and any other makes counts and result NaN.
class ClassificationMetric final : public Metric {
 public:
  // Throws StateError for a problem of several classes without an average, for fewer than 2 of them, for a top_k
  // outside of [1, num_classes], for names that are not as many, and for a null statistic.
  ClassificationMetric(ClassificationProblem problem, Statistic statistic,
                       ZeroDivision zero_division = ZeroDivision::kZero);

  // scores, targets: of the shapes that the problem says. Does not wait for the device. Throws StateError for others.
  void update(const at::Tensor& scores, const at::Tensor& targets);
  [[nodiscard]] ConfusionCounts counts() const;  // [C] fp64
  [[nodiscard]] at::Tensor compute() const override;
  [[nodiscard]] std::vector<std::string> result_names() const override { return names_; }
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&counts_}; }

 private:
  ClassificationProblem problem_;
  Statistic statistic_;
  ZeroDivision zero_division_;
  Average average_;
  std::vector<std::string> names_;
  Accumulator counts_;  // [4, C]: tp, fp, tn, fn
};

}  // namespace d9d
