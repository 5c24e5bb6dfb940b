// The objects that the steps of a training run use, without the types of the task. The Trainer builds them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/offload/offload_list.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/step/spike_limits.h"
#include "d9d/loop/step/update_count.h"
#include "d9d/loop/task/event_bus.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/loop/task/stop_request.h"
#include "d9d/lr_scheduler/learning_rate_scheduler.h"
#include "d9d/metrics/metric.h"
#include "d9d/modules/freeze_guard.h"
#include "d9d/modules/module.h"
#include "d9d/optim/optimizer.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

// The course of the evaluations on one set, which checkpoints save.
struct EvaluationHistory {
  std::int64_t last_step = -1;               // number of steps that were done at the last evaluation; -1: none yet
  nlohmann::ordered_json best_of = nullptr;  // metric, mode and weights of the best; null: none yet
  std::optional<double> best_value = {};
  std::int64_t best_step = -1;  // number of steps that were done at the best evaluation
};

// The data that the job reads, if it changes its data at a resume (trainer.data_phase). Checkpoints save it.
struct DataPhase {
  std::optional<std::string> name = {};  // null: the job has not named any
  std::int64_t first_step = 0;           // number of steps that were done when this data began
};

// What computes the outputs that a task compares those of its model with (TrainTask::take_reference).
struct ReferenceModel {
  // The stages of a frozen copy of the model on this rank, in increasing order; empty: model_stages without adapters.
  std::vector<std::shared_ptr<AnyModelStage>> copy = {};
};

struct TrainingJob {
  const DistContext& context;  // borrowed
  const TrainerConfig config;
  const std::unique_ptr<EventBus> events;  // handlers may keep a reference to it
  JobSchedule schedule;
  DataPhase data_phase;
  const std::shared_ptr<Module> module;                            // all stages of this rank as one
  const std::vector<std::shared_ptr<AnyModelStage>> model_stages;  // the stages of this rank, in increasing order
  const std::vector<std::shared_ptr<Module>> stages;               // the modules of model_stages
  const std::optional<ReferenceModel> reference;                   // none: the task has none
  const PipelineSchedule pipeline_schedule;                        // as configured, or a custom schedule
  const bool has_custom_schedule = false;
  const StagePlacement placement;  // placement of the stages of all ranks
  const RandomClockPtr clock;      // random clock of the module's layers
  const MetricMap metrics;
  // For a task with several losses: the mean of each loss since the last reset(), as "loss/<name>". All ranks have the
  // same names once the inputs of the first microbatches are built.
  const std::shared_ptr<MetricMap> loss_means = std::make_shared<MetricMap>();
  const FreezeGuard freeze_guard;  // guards the parameters that the optimiser was built on
  Optimizer optimizer;
  std::optional<Ema> ema;  // of the parameters that the optimiser was built on; none without trainer.ema
  LearningRateScheduler lr_scheduler;
  std::optional<std::string> rate_picture = {};  // LearningRateSchedulerProvider::draw(); on the main process
  // The given trainer.pipelining.schedule if it was auto, otherwise null. `config` contains the schedule that was
  // chosen.
  nlohmann::ordered_json auto_schedule = nullptr;
  // Bytes of trainer.memory_budget.device for this rank; none: no budget.
  std::optional<std::int64_t> device_budget = {};
  // The configuration of trainer, optimiser, learning-rate schedule and data as the user gave it, for the comparison
  // with a resumed job (warn_of_other_settings).
  nlohmann::ordered_json written = nullptr;
  nlohmann::json hparams;                          // settings of task and model, for the tracker
  nlohmann::ordered_json tracker_state = nullptr;  // of the tracker's run that this run continues
  UpdateCount updates;                             // over all runs of the job
  SpikeLimits spikes = SpikeLimits(config.gradient_clipping.spikes);
  // By the names of trainer.evaluation.
  std::map<std::string, EvaluationHistory> evaluations = {};
  const std::shared_ptr<StopRequest> stop = std::make_shared<StopRequest>();
  const std::shared_ptr<OffloadList> offloads = std::make_shared<OffloadList>();  // parts that sleep with the job
  const std::optional<double> flops_per_token = {};                               // AnyModelProvider::flops_per_token()
  const std::shared_ptr<const Tracker> tracker;                                   // job_tracker()
};

}  // namespace d9d
