// The area under the ROC curve or the average precision of scores, over microbatches and ranks.
//
// Example
//   CurveMetric spam({}, auroc);
//   spam.update(probabilities, labels);                                            // both [B]
//   CurveMetric topics({.num_classes = 4, .average = Average::kMacro}, average_precision);
//   topics.update(probabilities, classes);                                         // [B, 4] and [B]
//
// Scores are counted in bins of equal width, and different scores in one bin count as ties: the result is exact if
// there are none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/classification/statistics.h"
#include "d9d/metrics/metric.h"

namespace d9d {

// How many samples have a score in each bin, by whether they are of the class.
struct ScoreCounts {
  at::Tensor positive, negative;  // [..., number of bins] fp64, scores ascending
};

// The area under the curve of one class. Returns [...] fp64 for counts [..., number of bins].
using Curve = std::function<at::Tensor(const ScoreCounts&)>;
// The share of pairs of a positive and a negative sample in which the positive has the higher score; a tie is a half.
// 0.5 if there are only positives, or only negatives.
[[nodiscard]] at::Tensor auroc(const ScoreCounts& counts);
// The mean of the precision at each positive sample: of those with its score or a higher one. 0 without positives.
[[nodiscard]] at::Tensor average_precision(const ScoreCounts& counts);

struct CurveMetricConfig {
  std::int64_t num_classes = 2;  // 2: yes or no, of which scores have one, that of yes. More: each against the others
  std::int64_t num_bins = 10'000;
  std::optional<Average> average = std::nullopt;  // of more than 2 classes; kMicro: all their scores on one curve
  std::vector<std::string> class_names = {};      // as in MulticlassProblem
};

// A scalar, or [C] under Average::kPerClass. Counts are exact up to 2^53. A score of NaN makes the result NaN. It
// keeps, and saves, two numbers for each bin and class.
class CurveMetric final : public Metric {
 public:
  // Throws StateError for fewer than 2 classes or 1 bin, for more than 2 classes without an average, for 2 with one,
  // for names that are not as many, and for a null curve.
  CurveMetric(CurveMetricConfig config, Curve curve);

  // scores: from 0 to 1, others count as the nearest of these. Of 2 classes: scores and targets have the same number of
  // elements; targets are 0, 1 or the probability of 1. Of more: scores [..., C], and targets are classes_of() them.
  // kIgnoreIndex: not counted. Another target makes counts and result NaN. Does not wait for the device. Throws
  // StateError for other shapes.
  void update(const at::Tensor& scores, const at::Tensor& targets);
  [[nodiscard]] ScoreCounts counts() const;  // [C, number of bins], C = 1 of 2 classes
  [[nodiscard]] at::Tensor compute() const override;
  [[nodiscard]] std::vector<std::string> result_names() const override { return names_; }
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&counts_}; }

 private:
  CurveMetricConfig config_;
  Curve curve_;
  std::vector<std::string> names_;
  Accumulator counts_;  // [2, C, number of bins]: positive, negative
};

}  // namespace d9d
