#include "d9d/metrics/metric.h"

#include <ATen/ATen.h>

namespace d9d {

void SumMetric::update(const at::Tensor& values) {
  const at::Tensor sum = values.detach().to(at::kDouble).sum();
  sum_ = sum_.defined() ? sum_ + sum : sum;
}

at::Tensor SumMetric::compute() const { return sum_.defined() ? sum_ : at::zeros({}, at::kDouble); }

void SumMetric::reset() { sum_ = at::Tensor(); }

}  // namespace d9d
