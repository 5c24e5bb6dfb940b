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
  // A tensor of one element, on the device of the updates. Should not wait for the device. A job calls it on a second
  // stream; that of training waits for it before the next updates.
  [[nodiscard]] virtual at::Tensor compute() const = 0;
  // All that compute() reads, owned by the metric: on all ranks accumulators of the same shapes and ops, in the same
  // order, also where nothing is updated. They are reduced over ranks, saved, and loaded. What a metric keeps elsewhere
  // is of its rank alone, and begins anew when a job continues.
  [[nodiscard]] virtual std::vector<Accumulator*> accumulators() = 0;
  // Forgets all updates. An override also forgets what the metric keeps elsewhere.
  virtual void reset();
};

// Metrics by name; the names become tracker series.
using MetricMap = std::map<std::string, std::shared_ptr<Metric>>;

namespace detail {
[[noreturn]] void throw_no_metric(const MetricMap& metrics, const std::string& name);
}

// Returns the metric of this name. Throws StateError if there is none, or one of another class.
//
// Example
//   metric_at<SumMetric>(metrics, "num_correct").update(correct.sum());
template <class T>
[[nodiscard]] T& metric_at(const MetricMap& metrics, const std::string& name) {
  const auto found = metrics.find(name);
  T* const metric = found == metrics.end() ? nullptr : dynamic_cast<T*>(found->second.get());
  if (metric == nullptr) detail::throw_no_metric(metrics, name);
  return *metric;
}

// The sum of all values that it was given.
class SumMetric final : public Metric {
 public:
  void update(const at::Tensor& values);  // any shape; detached, summed in double
  [[nodiscard]] at::Tensor compute() const override { return sum_.value(); }
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&sum_}; }

 private:
  Accumulator sum_;
};

// The weighted mean of all values that it was given, over microbatches and ranks; NaN while the sum of weights is 0.
//
// Example
//   MeanMetric error;
//   error.update(squared_error, /*weight=*/num_sequences);    // squared_error: a mean over num_sequences
class MeanMetric final : public Metric {
 public:
  // value, weight: tensors of one element, detached. A value of weight 0, such as a mean over nothing, may be NaN.
  void update(const at::Tensor& value, const at::Tensor& weight);
  [[nodiscard]] at::Tensor compute() const override;
  [[nodiscard]] at::Tensor sums() const { return sums_.value(); }  // [2] fp64: of weighted values, of weights
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&sums_}; }

 private:
  Accumulator sums_{{2}};
};

}  // namespace d9d
