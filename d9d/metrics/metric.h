// A number about training that is collected over microbatches and read at logging steps.
//
// Example
//   SumMetric num_tokens;
//   num_tokens.update(labels.ne(kIgnoreIndex).sum());    // once a microbatch; stays on the device
//   num_tokens.compute().item<double>();                 // at a logging step
//   num_tokens.reset();
#pragma once

#include <map>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

class Metric {
 public:
  virtual ~Metric() = default;
  // A tensor of one element, on the device of the updates.
  [[nodiscard]] virtual at::Tensor compute() const = 0;
  virtual void reset() = 0;
  // Collective. Afterwards compute() covers the updates of all `ranks`, until reset().
  virtual void sync(const DeviceMesh& ranks) = 0;
  // The result of the updates since reset(), as numbers that can be summed over ranks: a checkpoint holds their sum,
  // which one rank loads again. Undefined: no updates, or a metric that starts anew after a resume.
  [[nodiscard]] virtual at::Tensor state() const = 0;
  // state: the sum over all ranks of what state() returned: fp64, of the same shape, on the device of the job.
  virtual void load_state(const at::Tensor& state) = 0;
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
  [[nodiscard]] at::Tensor compute() const override;
  void reset() override;
  void sync(const DeviceMesh& ranks) override;
  [[nodiscard]] at::Tensor state() const override { return sum_; }
  void load_state(const at::Tensor& state) override { sum_ = state; }

 private:
  at::Tensor sum_;  // undefined: no updates yet
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
  void reset() override;
  void sync(const DeviceMesh& ranks) override;
  [[nodiscard]] at::Tensor state() const override { return sums_; }
  void load_state(const at::Tensor& state) override { sums_ = state; }

 private:
  at::Tensor sums_;  // [2] fp64: of weighted values, of weights; undefined: no updates yet
};

}  // namespace d9d
