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
  // A tensor of one element, on whichever device the updates were.
  [[nodiscard]] virtual at::Tensor compute() const = 0;
  virtual void reset() = 0;
  // Collective: compute() is about the updates of all these ranks from now on, until reset().
  virtual void sync(const DeviceMesh& ranks) = 0;
};

// By name; names become tracker series.
using MetricMap = std::map<std::string, std::shared_ptr<Metric>>;

// The sum of everything that it was given.
class SumMetric final : public Metric {
 public:
  void update(const at::Tensor& values);  // any shape; detached, summed in double
  [[nodiscard]] at::Tensor compute() const override;
  void reset() override;
  void sync(const DeviceMesh& ranks) override;

 private:
  at::Tensor sum_;  // undefined: nothing yet
};

}  // namespace d9d
