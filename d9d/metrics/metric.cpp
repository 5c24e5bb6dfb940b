#include "d9d/metrics/metric.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/metrics/compose_metric.h"

namespace d9d {

Metric* detail::find_metric(const MetricMap& metrics, const std::string& name) {
  if (const auto found = metrics.find(name); found != metrics.end()) return found->second.get();
  const MetricMap leaves = leaf_metrics(metrics);
  const auto leaf = leaves.find(name);
  return leaf == leaves.end() ? nullptr : leaf->second.get();
}

void detail::throw_no_metric(const MetricMap& metrics, const std::string& name) {
  std::string names;
  for (const auto& [each, metric] : leaf_metrics(metrics)) names += cat(names.empty() ? "" : ", ", each);
  throw StateError(cat("[metrics] expected a metric '", name, "' of the class that metric_at() names, got {", names,
                       "}. Return it in TrainTask::create_metrics, with this class."));
}

void Metric::reset() {
  for (Accumulator* each : accumulators()) each->reset();
}

std::vector<std::string> series_of(const std::string& name, const Metric& metric) {
  std::vector<std::string> series;
  for (const std::string& result : metric.result_names()) series.push_back(result.empty() ? name : name + "/" + result);
  return series;
}

at::Tensor results_of(const std::string& name, const Metric& metric) {
  const at::Tensor results = metric.compute();
  const std::size_t num_names = metric.result_names().size();
  D9D_CHECK(static_cast<std::size_t>(results.numel()) == num_names, StateError, "[metrics] expected ", num_names,
            " elements of the metric '", name, "', one for each of its result_names(), got ", results.sizes(),
            ". Name each element in Metric::result_names().");
  return results.detach().to(at::kDouble).flatten();
}

MetricMap leaf_metrics(const MetricMap& metrics) {
  MetricMap leaves;
  for (const auto& [name, metric] : metrics) {
    const auto* const compose = dynamic_cast<const ComposeMetric*>(metric.get());
    if (compose == nullptr) {
      leaves.emplace(name, metric);
      continue;
    }
    for (const auto& [child, leaf] : leaf_metrics(compose->children())) leaves.emplace(cat(name, "/", child), leaf);
  }
  return leaves;
}

std::shared_ptr<Metric> counted_by_sample(std::shared_ptr<Metric> metric) {
  for (Accumulator* each : metric->accumulators()) each->set_counted_by(CountedBy::kSample);
  return metric;
}

}  // namespace d9d
