#include "d9d/metrics/aggregates.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

at::Tensor quotient_of(const Accumulator& sums) {
  const at::Tensor values = sums.value();
  return values[0] / values[1];
}

}  // namespace

void SumMetric::update(const at::Tensor& values) { sum_.update(values.detach().to(at::kDouble).sum()); }

void MeanMetric::update(const at::Tensor& values, const at::Tensor& weights) {
  D9D_CHECK(values.numel() == weights.numel(), StateError, "[metrics] expected a weight for each of the values ",
            values.sizes(), ", got ", weights.sizes(), ". Expand the weights, or give a mean and its sum of weights.");
  const at::Tensor wide = weights.detach().to(values.device(), at::kDouble).flatten();
  const at::Tensor weighted = (values.detach().to(at::kDouble).flatten() * wide).masked_fill(wide == 0, 0);
  sums_.update(at::stack({weighted.sum(), wide.sum()}));
}

at::Tensor MeanMetric::compute() const { return quotient_of(sums_); }

void MaxMetric::update(const at::Tensor& values) {
  if (values.numel() > 0) largest_.update(values.detach().max());
}

void MinMetric::update(const at::Tensor& values) {
  if (values.numel() > 0) smallest_.update(values.detach().min());
}

void LastMetric::update(const at::Tensor& value) {
  D9D_CHECK(value.numel() == 1, StateError, "[metrics] expected one element as the last value, got ", value.sizes(),
            ". Give the metric one number, such as a mean.");
  const at::Tensor wide = value.detach().to(at::kDouble).flatten();
  sums_.reset();
  sums_.update(at::cat({wide, at::ones_like(wide)}));
}

at::Tensor LastMetric::compute() const { return quotient_of(sums_); }

}  // namespace d9d
