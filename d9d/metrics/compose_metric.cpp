#include "d9d/metrics/compose_metric.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

ComposeMetric::ComposeMetric(MetricMap children) : children_(std::move(children)) {
  D9D_CHECK(!children_.empty(), StateError,
            "[metrics] expected metrics in a ComposeMetric, got none. Give it some, or leave it out.");
  for (const auto& [name, metric] : children_) {
    D9D_CHECK(metric != nullptr && !name.empty(), StateError,
              "[metrics] expected metrics with names in a ComposeMetric, ", "got ",
              metric == nullptr ? "null" : "a metric", " as '", name, "'. Create and name each.");
  }
}

at::Tensor ComposeMetric::compute() const {
  std::vector<at::Tensor> results;
  at::Device device = at::kCPU;  // those without updates are there
  for (const auto& [name, metric] : children_) {
    results.push_back(results_of(name, *metric));
    if (!results.back().is_cpu()) device = results.back().device();
  }
  for (at::Tensor& each : results) each = each.to(device);
  return at::cat(results);
}

std::vector<std::string> ComposeMetric::result_names() const {
  std::vector<std::string> names;
  for (const auto& [name, metric] : children_) {
    for (std::string& series : series_of(name, *metric)) names.push_back(std::move(series));
  }
  return names;
}

std::vector<Accumulator*> ComposeMetric::accumulators() {
  std::vector<Accumulator*> all;
  for (const auto& [name, metric] : children_) {
    for (Accumulator* each : metric->accumulators()) all.push_back(each);
  }
  return all;
}

void ComposeMetric::reset() {
  for (const auto& [name, metric] : children_) metric->reset();
}

}  // namespace d9d
