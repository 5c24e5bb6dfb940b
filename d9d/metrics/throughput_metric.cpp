#include "d9d/metrics/throughput_metric.h"

#include <chrono>
#include <utility>

#include <ATen/ATen.h>

namespace d9d {

ThroughputMetric::Clock ThroughputMetric::steady_clock() {
  return [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
}

ThroughputMetric::ThroughputMetric(Clock clock) : clock_(std::move(clock)), since_(clock_()) {}

void ThroughputMetric::update(const at::Tensor& counts) {
  const at::Tensor count = counts.detach().to(at::kDouble).sum();
  const double now = clock_();
  // Filled on the device, since a copy from the host would wait.
  at::Tensor seconds = at::full({}, now - std::exchange(since_, now), count.options());
  if (seconds_.has_updates()) seconds = seconds + seconds_.value();
  seconds_.reset();
  seconds_.update(seconds);
  count_.update(count);
}

at::Tensor ThroughputMetric::compute() const { return count_.value() / seconds_.value().clamp_min(0); }

void ThroughputMetric::reset() {
  Metric::reset();
  since_ = clock_();
}

}  // namespace d9d
