#include "d9d/metrics/classification/statistics.h"

#include <limits>

#include <ATen/ATen.h>

namespace d9d {
namespace {

double value_of(ZeroDivision zero_division) {
  if (zero_division == ZeroDivision::kNan) return std::numeric_limits<double>::quiet_NaN();
  return zero_division == ZeroDivision::kOne ? 1 : 0;
}

ConfusionCounts sum_over_classes(const ConfusionCounts& counts) {
  return {.tp = counts.tp.sum(),
          .fp = counts.fp.sum(),
          .tn = counts.tn.sum(),
          .fn = counts.fn.sum(),
          .one_of_several = counts.one_of_several};
}

}  // namespace

Quotient accuracy(const ConfusionCounts& counts) {
  return counts.one_of_several ? recall(counts) : one_vs_rest_accuracy(counts);
}

Quotient one_vs_rest_accuracy(const ConfusionCounts& counts) {
  return {counts.tp + counts.tn, counts.tp + counts.tn + counts.fp + counts.fn};
}

Quotient precision(const ConfusionCounts& counts) { return {counts.tp, counts.tp + counts.fp}; }

Quotient recall(const ConfusionCounts& counts) { return {counts.tp, counts.support()}; }

Quotient f1(const ConfusionCounts& counts) { return f_beta(1)(counts); }

Statistic f_beta(double beta) {
  return [square = beta * beta](const ConfusionCounts& counts) -> Quotient {
    const at::Tensor right = (1 + square) * counts.tp;
    return {right, right + square * counts.fn + counts.fp};
  };
}

at::Tensor statistic_of(const ConfusionCounts& counts, const Statistic& statistic, Average average,
                        ZeroDivision zero_division) {
  const Quotient quotient = statistic(average == Average::kMicro ? sum_over_classes(counts) : counts);
  const at::Tensor is_undefined = quotient.denominator.eq(0);
  const at::Tensor values =
      at::where(is_undefined, value_of(zero_division), quotient.numerator.to(at::kDouble) / quotient.denominator);
  if (average == Average::kMicro) return values;
  const at::Tensor leaves_out = zero_division == ZeroDivision::kNan ? is_undefined : at::zeros_like(is_undefined);
  return averaged(values, counts.support(), leaves_out.logical_not(), average);
}

at::Tensor averaged(const at::Tensor& values, const at::Tensor& support, const at::Tensor& counts, Average average) {
  if (average == Average::kPerClass) return values;
  const at::Tensor equal = counts.to(at::kDouble);
  at::Tensor weights = equal;
  if (average == Average::kWeighted) {
    weights = support.to(at::kDouble) * equal;
    weights = at::where(weights.sum() == 0, equal, weights);
  }
  return (values * weights).masked_fill(counts.logical_not(), 0).sum() / weights.sum();
}

}  // namespace d9d
