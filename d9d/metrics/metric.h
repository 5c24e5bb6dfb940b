// A number about training that is collected over microbatches and read at logging steps.
//
// Example
//   class LargestLoss final : public Metric {
//    public:
//     void update(const at::Tensor& losses) { largest_.update(losses.max()); }   // once a microbatch
//     at::Tensor compute() const override { return largest_.value(); }           // at a logging step
//     std::vector<Accumulator*> accumulators() override { return {&largest_}; }
//    private:
//     Accumulator largest_{{}, ReduceOp::kMax};
//   };
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/accumulator.h"

namespace d9d {

class Metric {
 public:
  virtual ~Metric() = default;
  // A tensor of as many elements as result_names() has names, on the device of the updates. Should not wait for the
  // device. A job calls it on a second stream; that of training waits for it before the next updates.
  [[nodiscard]] virtual at::Tensor compute() const = 0;
  // What the elements of compute() are, the same at each call and on all ranks. Trackers get the metric "f1" as "f1",
  // or as "f1/cat" and "f1/dog" if these are the names: "" is the metric itself.
  [[nodiscard]] virtual std::vector<std::string> result_names() const { return {""}; }
  // All that compute() reads, owned by the metric: on all ranks accumulators of the same shapes and ops, in the same
  // order, also where nothing is updated. They are reduced over ranks, saved, and loaded. What a metric keeps elsewhere
  // is of its rank alone, and begins anew when a job continues.
  [[nodiscard]] virtual std::vector<Accumulator*> accumulators() = 0;
  // Forgets all updates. An override also forgets what the metric keeps elsewhere.
  virtual void reset();
};

// Metrics by name; the names become tracker series (result_names()).
using MetricMap = std::map<std::string, std::shared_ptr<Metric>>;

// Returns the series of a metric, "<name>/<result>" for each result with a name of its own.
[[nodiscard]] std::vector<std::string> series_of(const std::string& name, const Metric& metric);
// Returns compute() as [number of series] fp64. Throws StateError if it has another number of elements.
[[nodiscard]] at::Tensor results_of(const std::string& name, const Metric& metric);

// Returns the metrics, with those in a ComposeMetric in place of it, as "<name>/<child>".
[[nodiscard]] MetricMap leaf_metrics(const MetricMap& metrics);

// Says that the metric counts samples: under context parallelism all ranks that share sequences update it with the same
// values, which count once (CountedBy::kSample). Returns the metric. Otherwise their updates add up, as they should
// where a rank counts its own tokens. Tensor-parallel ranks have copies of the same values; these always count once.
//
// Example
//   MetricMap create_metrics() override {
//     return {{"num_tokens_seen", std::make_shared<SumMetric>()},
//             {"num_documents", counted_by_sample(std::make_shared<SumMetric>())}};
//   }
[[nodiscard]] std::shared_ptr<Metric> counted_by_sample(std::shared_ptr<Metric> metric);

namespace detail {
[[nodiscard]] Metric* find_metric(const MetricMap& metrics, const std::string& name);
[[noreturn]] void throw_no_metric(const MetricMap& metrics, const std::string& name);
}  // namespace detail

// Returns the metric of this name, which may be one in a ComposeMetric: "scores/f1". Throws StateError if there is
// none, or one of another class.
//
// Example
//   metric_at<SumMetric>(metrics, "num_correct").update(correct.sum());
template <class T>
[[nodiscard]] T& metric_at(const MetricMap& metrics, const std::string& name) {
  T* const metric = dynamic_cast<T*>(detail::find_metric(metrics, name));
  if (metric == nullptr) detail::throw_no_metric(metrics, name);
  return *metric;
}

}  // namespace d9d
