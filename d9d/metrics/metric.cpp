#include "d9d/metrics/metric.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

void detail::throw_no_metric(const MetricMap& metrics, const std::string& name) {
  std::string names;
  for (const auto& [each, metric] : metrics) names += cat(names.empty() ? "" : ", ", each);
  throw StateError(cat("[metrics] expected a metric '", name, "' of the class that metric_at() names, got {", names,
                       "}. Return it in TrainTask::create_metrics, with this class."));
}

void Metric::reset() {
  for (Accumulator* each : accumulators()) each->reset();
}

void SumMetric::update(const at::Tensor& values) { sum_.update(values.detach().to(at::kDouble).sum()); }

void MeanMetric::update(const at::Tensor& value, const at::Tensor& weight) {
  const at::Tensor wide_weight = weight.detach().to(value.device(), at::kDouble).reshape(at::IntArrayRef());
  const at::Tensor weighted =
      (value.detach().to(at::kDouble).reshape(at::IntArrayRef()) * wide_weight).masked_fill(wide_weight == 0, 0);
  sums_.update(at::stack({weighted, wide_weight}));
}

at::Tensor MeanMetric::compute() const {
  const at::Tensor sums = sums_.value();
  return sums[0] / sums[1];
}

}  // namespace d9d
