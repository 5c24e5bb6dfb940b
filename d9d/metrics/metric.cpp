#include "d9d/metrics/metric.h"

#include <ATen/ATen.h>

namespace d9d {

void SumMetric::update(const at::Tensor& values) {
  const at::Tensor sum = values.detach().to(at::kDouble).sum();
  sum_ = sum_.defined() ? sum_ + sum : sum;
}

at::Tensor SumMetric::compute() const { return sum_.defined() ? sum_ : at::zeros({}, at::kDouble); }

void SumMetric::sync(const DeviceMesh& ranks) {
  if (ranks.num_ranks() == 1) return;
  const auto communicator = ranks.communicator();
  sum_ = compute().to(communicator->device());
  communicator->all_reduce(sum_, ReduceOp::kSum).wait();
}

void SumMetric::reset() { sum_ = at::Tensor(); }

}  // namespace d9d
