// Metrics that are one number of all values that they were given, over microbatches and ranks.
//
// Example
//   SumMetric num_right;
//   num_right.update(is_right);                                  // [B] bool; stays on the device
//   MeanMetric error;
//   error.update(squared_errors, /*weights=*/is_labelled);       // both [B]
//   error.update(mean_squared_error, num_sequences);             // or a mean, and what it is a mean over
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/metric.h"

namespace d9d {

// All take tensors of any dtype, detach them and compute in fp64: integers are exact up to 2^53. Empty tensors change
// nothing. NaN in values is NaN in the result.

// The sum; 0 before the first value.
class SumMetric final : public Metric {
 public:
  void update(const at::Tensor& values);  // any shape
  [[nodiscard]] at::Tensor compute() const override { return sum_.value(); }
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&sum_}; }

 private:
  Accumulator sum_;
};

// The weighted mean; NaN while the sum of weights is 0.
class MeanMetric final : public Metric {
 public:
  // values, weights: any shapes, of the same number of elements. A value of weight 0, such as a mean over nothing, may
  // be NaN. Throws StateError for different numbers.
  void update(const at::Tensor& values, const at::Tensor& weights);
  [[nodiscard]] at::Tensor compute() const override;
  [[nodiscard]] at::Tensor sums() const { return sums_.value(); }  // [2] fp64: of weighted values, of weights
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&sums_}; }

 private:
  Accumulator sums_{{2}};
};

// The largest value; -inf before the first.
class MaxMetric final : public Metric {
 public:
  void update(const at::Tensor& values);  // any shape
  [[nodiscard]] at::Tensor compute() const override { return largest_.value(); }
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&largest_}; }

 private:
  Accumulator largest_{{}, ReduceOp::kMax};
};

// The smallest value; inf before the first.
class MinMetric final : public Metric {
 public:
  void update(const at::Tensor& values);  // any shape
  [[nodiscard]] at::Tensor compute() const override { return smallest_.value(); }
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&smallest_}; }

 private:
  Accumulator smallest_{{}, ReduceOp::kMin};
};

// The last value; over ranks the mean of the last value of each, NaN before the first. It is for what is given with
// each microbatch: a resumed job keeps the mean of all ranks until the first of them gets another value.
class LastMetric final : public Metric {
 public:
  void update(const at::Tensor& value);  // one element
  [[nodiscard]] at::Tensor compute() const override;
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&sums_}; }

 private:
  Accumulator sums_{{2}};  // the value, and 1
};

}  // namespace d9d
