#include "d9d/metrics/classification/curve_metric.h"

#include <limits>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"
#include "d9d/metrics/classification/class_results.h"

namespace d9d {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Returns the counts of all scores in or above each bin.
at::Tensor sum_from_above(const at::Tensor& counts) { return counts.flip(-1).cumsum(-1).flip(-1); }

// scores, positive: [N, C] fp64, how much of a sample is of the class; counted: [N, C] bool. Returns [2, C, num_bins].
at::Tensor count_scores(const at::Tensor& scores, const at::Tensor& positive, const at::Tensor& counted,
                        std::int64_t num_bins) {
  const std::int64_t num_classes = scores.size(1);
  const at::Tensor bin = (scores * static_cast<double>(num_bins)).nan_to_num(0).clamp(0, num_bins - 1).to(at::kLong);
  const at::Tensor place = bin + num_bins * at::arange(num_classes, bin.options());
  const at::Tensor one = at::where(scores.isnan(), kNan, at::ones_like(scores));
  const auto of_counted = [&](const at::Tensor& share) {
    return (share * one).masked_fill(counted.logical_not(), 0).flatten();
  };
  const at::Tensor places = at::cat({place.flatten(), place.flatten() + num_classes * num_bins});
  const at::Tensor shares = at::cat({of_counted(positive), of_counted(1 - positive)});
  return at::zeros({2 * num_classes * num_bins}, scores.options())
      .scatter_add(0, places, shares)
      .view({2, num_classes, num_bins});
}

std::int64_t num_curves(const CurveMetricConfig& config) { return config.num_classes == 2 ? 1 : config.num_classes; }

}  // namespace

at::Tensor auroc(const ScoreCounts& counts) {
  const auto& [positive, negative] = counts;
  const at::Tensor num_positive = positive.sum(-1), num_negative = negative.sum(-1);
  const at::Tensor above = sum_from_above(positive) - positive;
  const at::Tensor pairs = (negative * (above + 0.5 * positive)).sum(-1);
  const at::Tensor has_no_pair = num_positive.le(0).logical_or(num_negative.le(0));
  return at::where(has_no_pair, 0.5, pairs / (num_positive * num_negative));
}

at::Tensor average_precision(const ScoreCounts& counts) {
  const at::Tensor num_positive = counts.positive.sum(-1);
  const at::Tensor found = sum_from_above(counts.positive);
  const at::Tensor chosen = found + sum_from_above(counts.negative);
  const at::Tensor precisions = found / chosen.masked_fill(chosen == 0, 1);
  const at::Tensor sum = (counts.positive * precisions).sum(-1);
  return at::where(num_positive.le(0), 0.0, sum / num_positive);
}

CurveMetric::CurveMetric(CurveMetricConfig config, Curve curve) : config_(std::move(config)), curve_(std::move(curve)) {
  const auto& [num_classes, num_bins, average, class_names] = config_;
  D9D_CHECK(num_classes >= 2 && num_bins >= 1, StateError,
            "[metrics] expected num_classes >= 2 and num_bins >= 1, got ", num_classes, " and ", num_bins,
            ". Correct them.");
  D9D_CHECK(average.has_value() == (num_classes > 2), StateError,
            "[metrics] expected an average of more than 2 classes, and none of 2, got ", average ? "one" : "none",
            " of ", num_classes, ". Set average to Average::kMicro, kMacro, kWeighted or kPerClass, or leave it out.");
  D9D_CHECK(curve_ != nullptr, StateError,
            "[metrics] expected a curve of the counts, got null. Give auroc, average_precision or another.");
  names_ = detail::result_names(num_classes, average.value_or(Average::kMicro), class_names);
  counts_ = Accumulator({2, num_curves(config_), num_bins});
}

void CurveMetric::update(const at::Tensor& scores, const at::Tensor& targets) {
  const std::int64_t num_classes = config_.num_classes;
  at::Tensor wide = scores.detach().to(at::kDouble);
  at::Tensor positive, counted, wrong;
  if (num_classes == 2) {
    D9D_CHECK(scores.numel() == targets.numel(), StateError, "[metrics] expected a target for each of the scores ",
              scores.sizes(), ", got ", targets.sizes(), ". Give the score of class 1 and a target of each sample.");
    wide = wide.reshape({-1, 1});
    positive = targets.detach().to(at::kDouble).reshape({-1, 1});
    counted = positive.ne(static_cast<double>(kIgnoreIndex));
    const at::Tensor is_right = positive.ge(0).logical_and(positive.le(1)).logical_or(counted.logical_not());
    wrong = at::where(is_right.all(), 0.0, at::full({}, kNan, positive.options()));
  } else {
    D9D_CHECK(scores.dim() > 0 && scores.size(-1) == num_classes, StateError, "[metrics] expected scores [..., ",
              num_classes, "], got ", scores.sizes(), ". Give a score for each class in the last dim.");
    const at::Tensor classes = classes_of(targets, scores).reshape({-1, 1});
    wide = wide.reshape({-1, num_classes});
    positive = classes.eq(at::arange(num_classes, classes.options())).to(at::kDouble);
    counted = classes.ne(kIgnoreIndex).expand_as(wide);
    wrong = nan_of_wrong(classes, num_classes);
  }
  counts_.update(count_scores(wide, positive, counted, config_.num_bins) + wrong);
}

ScoreCounts CurveMetric::counts() const {
  const at::Tensor counts = counts_.value();
  return {.positive = counts[0], .negative = counts[1]};
}

at::Tensor CurveMetric::compute() const {
  ScoreCounts of = counts();
  const Average average = config_.average.value_or(Average::kMicro);
  if (average == Average::kMicro) return curve_({.positive = of.positive.sum(0), .negative = of.negative.sum(0)});
  const at::Tensor values = curve_(of);
  return averaged(values, of.positive.sum(-1), at::ones_like(values).to(at::kBool), average);
}

}  // namespace d9d
