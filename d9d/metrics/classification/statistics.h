// Quotients of confusion counts, and how those of several classes become one number.
//
// Example
//   const at::Tensor f2 = statistic_of(counts, f_beta(2), Average::kMacro, ZeroDivision::kZero);
//
//   Quotient specificity(const ConfusionCounts& c) { return {c.tn, c.tn + c.fp}; }        // one's own Statistic
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/classification/confusion_counts.h"

namespace d9d {

struct Quotient {
  at::Tensor numerator, denominator;  // of the shape of the counts
};

// Element by element: it gets the counts of each class, [C] fp64, or under Average::kMicro those of all classes as
// scalars.
using Statistic = std::function<Quotient(const ConfusionCounts&)>;

// The share of what is right. Where a sample has one of several classes: of the samples of a class (which is its
// recall), under kMicro of all samples. Where it has any number of labels: one_vs_rest_accuracy().
[[nodiscard]] Quotient accuracy(const ConfusionCounts& counts);
[[nodiscard]] Quotient one_vs_rest_accuracy(const ConfusionCounts& counts);  // (tp + tn) / (tp + tn + fp + fn)
[[nodiscard]] Quotient precision(const ConfusionCounts& counts);             // tp / (tp + fp)
[[nodiscard]] Quotient recall(const ConfusionCounts& counts);                // tp / (tp + fn)
[[nodiscard]] Quotient f1(const ConfusionCounts& counts);                    // f_beta(1)
// (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp): recall counts beta times as much as precision.
[[nodiscard]] Statistic f_beta(double beta);

// kMicro: the statistic of the sums over classes. The others have the statistic of each class: kMacro the mean,
// kWeighted the mean weighted by the number of samples of the class, kPerClass all.
enum class Average : std::uint8_t { kMicro, kMacro, kWeighted, kPerClass };

// What 0 / 0 is, as scikit-learn's zero_division: 0, 1 or NaN. Means over classes leave out those that are NaN.
enum class ZeroDivision : std::uint8_t { kZero, kOne, kNan };

// Returns [C] for kPerClass, otherwise a scalar.
[[nodiscard]] at::Tensor statistic_of(const ConfusionCounts& counts, const Statistic& statistic, Average average,
                                      ZeroDivision zero_division);

// Averages values of classes as kMacro, kWeighted or kPerClass says. values, support, counts: [C]; counts: bool, false
// for a class that means leave out. The mean is NaN without classes, and is not weighted if the support of all is 0.
[[nodiscard]] at::Tensor averaged(const at::Tensor& values, const at::Tensor& support, const at::Tensor& counts,
                                  Average average);

}  // namespace d9d
