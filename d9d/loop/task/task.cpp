#include "d9d/loop/task/task.h"

#include <algorithm>
#include <array>
#include <set>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

at::Tensor LossWeight::number(double weight) { return at::scalar_tensor(weight, at::kDouble); }

AnyTask::~AnyTask() = default;

MetricMap AnyTask::create_metrics() { return {}; }

std::optional<ReferenceWeights> AnyTask::reference() const { return std::nullopt; }

nlohmann::json AnyTask::state() const { return nullptr; }

void AnyTask::load_state(const std::vector<nlohmann::json>& /*of_ranks*/) {
  throw StateError("[loop::task] expected a task that loads what it saved. Override TrainTask::load_state as well.");
}

void AnyTask::register_events(const DistContext& /*context*/, EventBus& /*events*/) {}

nlohmann::json AnyTask::dump_hparams() const { return nlohmann::json::object(); }

void AnyTask::finalize() {}

MetricMap checked_metrics(AnyTask& task) {
  MetricMap metrics = task.create_metrics();
  constexpr std::array kLogged = {"loss",          "grad_norm",         "lr",  "num_tokens",        "step_seconds",
                                  "data_seconds",  "tokens_per_second", "mfu", "device_peak_bytes", "host_bytes",
                                  "skipped_steps", "lr_schedule"};
  constexpr std::array kLoggedFolders = {"loss/", "lr/", "grad_norm/", "param_norm/"};
  std::set<std::string> all_series;
  for (const auto& [name, metric] : metrics) {
    D9D_CHECK(metric != nullptr, StateError,
              "[loop::trainer] expected TrainTask::create_metrics to return metrics, got null as '", name, "'.");
    for (const std::string& series : series_of(name, *metric)) {
      const bool is_logged =
          std::ranges::find(kLogged, series) != kLogged.end() ||
          std::ranges::any_of(kLoggedFolders, [&](const char* folder) { return series.starts_with(folder); });
      D9D_CHECK(!is_logged, StateError,
                "[loop::trainer] expected names of metrics that the job does not log itself, got '", series,
                "'. Rename it in TrainTask::create_metrics, to metric/", name, " for instance.");
      D9D_CHECK(all_series.insert(series).second, StateError,
                "[loop::trainer] expected metrics whose results have different names, got '", series,
                "' twice. Rename a metric in TrainTask::create_metrics, or its classes.");
    }
  }
  return metrics;
}

DeviceMesh metric_ranks(const DistContext& context) {
  return context.mesh(MeshDomain::kBatch).slice({"pp", "dp", "cp"});
}

}  // namespace d9d
