// The training loop without the types of its task: what happens in a step, in which order.
//
//   fetch a pack -> forward, loss, backward a microbatch at a time -> divide, norm, clip -> optimiser -> log ->
//   after-step actions of the model -> learning rate -> clear gradients -> current_step + 1
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/component/gradient_manager.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/control/job_schedule.h"
#include "d9d/loop/event/event_bus.h"
#include "d9d/lr_scheduler/learning_rate_scheduler.h"
#include "d9d/metrics/metric.h"
#include "d9d/optim/optimizer.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

// What knows the task's types.
class PackRunner {
 public:
  virtual ~PackRunner() = default;
  // Gets the next pack; false when the data ended.
  [[nodiscard]] virtual bool fetch() = 0;
  // Forward and backward of the fetched pack, losses into `gradients`. Returns the tokens that it had.
  virtual std::int64_t run(GradientManager& gradients, const JobSchedule& schedule) = 0;
};

enum class TrainingOutcome {
  kFinished,     // all steps were done
  kInterrupted,  // Ctrl-C or SIGTERM: the running step was finished and logged
};

// Everything that a run steps through; borrowed.
struct TrainingRunParts {
  const DistContext& context;
  const TrainerConfig& config;
  Module& module;
  PackRunner& packs;
  Optimizer& optimizer;
  LearningRateScheduler& lr_scheduler;
  JobSchedule& schedule;
  const MetricMap& metrics;
  const nlohmann::json& hparams;
  std::shared_ptr<const Tracker> tracker;  // beside the configuration's; null: none
  EventBus& events;
};

// Runs the steps that are left.
[[nodiscard]] TrainingOutcome run_training(const TrainingRunParts& parts);

}  // namespace d9d
