// How much is counted in a second, by all ranks together: tokens, images, bytes.
//
// Example
//   ThroughputMetric images;                       // its time begins
//   images.update(batch.num_images);               // a tensor; once a microbatch
//   images.compute();                              // images a second, until the last update
//   images.reset();                                // its time begins again
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/metrics/metric.h"

namespace d9d {

// The sum of all counts by the time from construction or reset() to the last update, on the host's clock, of the rank
// that took longest; NaN without updates. In a training job the time covers all that happens between two logs: saves
// and evaluations too. A resumed job goes on with the time that its checkpoint has.
class ThroughputMetric final : public Metric {
 public:
  using Clock = std::function<double()>;  // in seconds, from any beginning
  explicit ThroughputMetric(Clock clock = steady_clock());

  void update(const at::Tensor& counts);  // any shape; detached, summed in fp64
  [[nodiscard]] at::Tensor compute() const override;
  [[nodiscard]] std::vector<Accumulator*> accumulators() override { return {&count_, &seconds_}; }
  void reset() override;

 private:
  [[nodiscard]] static Clock steady_clock();

  Clock clock_;
  double since_;  // the last update, reset or construction
  Accumulator count_, seconds_{{}, ReduceOp::kMax};
};

}  // namespace d9d
