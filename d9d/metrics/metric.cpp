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

void MeanMetric::update(const at::Tensor& value, const at::Tensor& weight) {
  const at::Tensor wide_weight = weight.detach().to(value.device(), at::kDouble).reshape(at::IntArrayRef());
  const at::Tensor weighted =
      (value.detach().to(at::kDouble).reshape(at::IntArrayRef()) * wide_weight).masked_fill(wide_weight == 0, 0);
  const at::Tensor sums = at::stack({weighted, wide_weight});
  sums_ = sums_.defined() ? sums_ + sums : sums;
}

at::Tensor MeanMetric::compute() const {
  const at::Tensor sums = sums_.defined() ? sums_ : at::zeros({2}, at::kDouble);
  return sums[0] / sums[1];
}

void MeanMetric::sync(const DeviceMesh& ranks) {
  if (ranks.num_ranks() == 1) return;
  const auto communicator = ranks.communicator();
  sums_ = (sums_.defined() ? sums_ : at::zeros({2}, at::kDouble)).to(communicator->device());
  communicator->all_reduce(sums_, ReduceOp::kSum).wait();
}

void MeanMetric::reset() { sums_ = at::Tensor(); }

}  // namespace d9d
