// Builds a training job from its parts and runs it.
//
// Example
//   Trainer<MyTypes> trainer(context, config.trainer,
//                            {.task = task, .model = model_provider, .data = data_provider,
//                             .optimizer = optimizer_provider, .lr_scheduler = lr_provider});
//   if (trainer.train() == TrainingOutcome::kFinished) trainer.export_to(config.export_to);
#pragma once

#include <memory>
#include <optional>

#include "d9d/loop/run/trainer_base.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

// The trainer keeps references to the task and the providers, including those in `evaluation`: they must outlive it. It
// shares the tracker, and copies the schedule.
template <class Types>
struct TrainerParts {
  TrainTask<Types>& task;
  ModelProvider<Types>& model;
  DataProvider<BatchOf<Types>>& data;
  OptimizerProvider& optimizer;
  LearningRateSchedulerProvider& lr_scheduler;
  // The data of evaluation sets, by their names in trainer.evaluation, which says when the job evaluates on them.
  EvaluationData<Types> evaluation;
  // A custom tracker (docs/trackers.md), in addition to the one of trainer.logging.tracker; null: none. It is opened on
  // the main process.
  std::shared_ptr<const Tracker> tracker;
  // Trackers that a job's file may choose, by their names in {"provider": "custom", "name": ...}.
  TrackerFactories trackers;
  // A custom pipeline schedule (docs/pipelining.md) in place of trainer.pipelining.schedule, which must then be left
  // out.
  std::optional<PipelineSchedule> pipeline_schedule = std::nullopt;
};

// Builds and runs a training job. The implementation is in TrainerBase, which is compiled once for all tasks.
template <class Types>
class Trainer : public TrainerBase {
 public:
  // Collective. Builds the job: event handlers, data, model, optimiser and learning-rate schedule. Throws before any
  // model is built if the data cannot provide the number of steps. Resumes from the newest checkpoint in
  // trainer.checkpointing.save_dir, if there is one.
  Trainer(const DistContext& context, const TrainerConfig& config, const TrainerParts<Types>& parts)
      : TrainerBase(context, config,
                    {.task = parts.task,
                     .model = parts.model,
                     .optimizer = parts.optimizer,
                     .lr_scheduler = parts.lr_scheduler,
                     .tracker = parts.tracker,
                     .trackers = parts.trackers,
                     .pipeline_schedule = parts.pipeline_schedule},
                    std::make_unique<TypedTask<Types>>(parts.task, parts.model, parts.data, parts.evaluation)) {}
};

}  // namespace d9d
