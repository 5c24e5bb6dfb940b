#include "d9d/loop/task/task.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

at::Tensor LossWeight::number(double weight) { return at::scalar_tensor(weight, at::kDouble); }

AnyTask::~AnyTask() = default;

MetricMap AnyTask::create_metrics() { return {}; }

nlohmann::json AnyTask::state() const { return nullptr; }

void AnyTask::load_state(const std::vector<nlohmann::json>& /*of_ranks*/) {
  throw StateError("[loop::task] expected a task that loads what it saved. Override TrainTask::load_state as well.");
}

void AnyTask::register_events(const DistContext& /*context*/, EventBus& /*events*/) {}

nlohmann::json AnyTask::dump_hparams() const { return nlohmann::json::object(); }

void AnyTask::finalize() {}

}  // namespace d9d
