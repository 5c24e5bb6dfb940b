// Several metrics under one name: what trackers get as "scores/accuracy" and "scores/f1/cat".
//
// Example
//   MetricMap create_metrics() override {
//     return {{"scores", std::make_shared<ComposeMetric>(MetricMap{
//                            {"accuracy", std::make_shared<ClassificationMetric>(problem, accuracy)},
//                            {"f1", std::make_shared<ClassificationMetric>(problem, f1)}})}};
//   }
//   ...
//   metric_at<ClassificationMetric>(metrics, "scores/f1").update(scores, classes);
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/metric.h"

namespace d9d {

// Results, accumulators and reset are those of the children, in the order of their names.
class ComposeMetric final : public Metric {
 public:
  // children: shared. Throws StateError for none, for null, and for an empty name.
  explicit ComposeMetric(MetricMap children);

  [[nodiscard]] const MetricMap& children() const { return children_; }

  // Does not compile: each child has its own update().
  template <class... Values>
  void update(const Values&...) {
    static_assert(
        sizeof...(Values) > sizeof...(Values),
        "a ComposeMetric has no update(): update its children, metric_at<SumMetric>(metrics, \"name/child\")");
  }

  [[nodiscard]] at::Tensor compute() const override;
  [[nodiscard]] std::vector<std::string> result_names() const override;  // "accuracy", "f1/cat", "f1/dog"
  [[nodiscard]] std::vector<Accumulator*> accumulators() override;
  void reset() override;

 private:
  MetricMap children_;
};

}  // namespace d9d
