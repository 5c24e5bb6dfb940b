// How often each class was predicted and was right: what accuracy, precision and the like are quotients of.
//
// Example
//   const ConfusionCounts counts = count_classes(top_classes(scores, 1), classes, /*num_classes=*/10);
//   const at::Tensor precision = counts.tp / (counts.tp + counts.fp);          // [10]
//   const ConfusionCounts of_labels = count_labels(scores > 0.5, labels);      // several labels a sample
//
// Letters: C classes or labels, k predicted classes of a sample.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d {

// Each class against all others: samples of the class that it was predicted for (tp) or not (fn), other samples that it
// was predicted for (fp) or not (tn).
struct ConfusionCounts {
  at::Tensor tp, fp, tn, fn;    // [C]; scalars where they are of all classes together
  bool one_of_several = false;  // a sample has one of several classes, and not any number of labels

  [[nodiscard]] at::Tensor support() const;  // tp + fn: samples of the class
};

// predicted: [..., C] bool. targets: the same shape, 1 for a label that the sample has, 0 for one that it has not;
// others, such as kIgnoreIndex, are not counted. Returns int64. Throws StateError for other shapes.
[[nodiscard]] ConfusionCounts count_labels(const at::Tensor& predicted, const at::Tensor& targets);

// predicted: [..., k] classes, int64, in [0, C), which differ within a sample. targets: [...] classes; a sample of one
// outside of [0, C), such as kIgnoreIndex, is not counted. Returns int64 [C]. Throws StateError for other shapes.
[[nodiscard]] ConfusionCounts count_classes(const at::Tensor& predicted, const at::Tensor& targets,
                                            std::int64_t num_classes);

// Returns, for a metric to add to its counts, 0 if all targets are classes in [0, num_classes) or kIgnoreIndex, and NaN
// otherwise: fp64, on the device of the targets, without a wait.
[[nodiscard]] at::Tensor nan_of_wrong(const at::Tensor& targets, std::int64_t num_classes);

// scores: [..., C]. Returns the k classes with the highest scores, [..., k] int64.
[[nodiscard]] at::Tensor top_classes(const at::Tensor& scores, std::int64_t k);

// scores: [..., C]. targets: classes of the shape [...] or [..., 1], or one-hot [..., C]. Returns classes, [...], int64
// of one-hot targets; kIgnoreIndex where all of a sample's are that. Throws StateError for another shape.
[[nodiscard]] at::Tensor classes_of(const at::Tensor& targets, const at::Tensor& scores);

}  // namespace d9d
