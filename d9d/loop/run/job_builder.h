// Builds a training job from its parts, in the order of the events of docs/training.md:
//
//   configuration -> data -> newest checkpoint -> pipeline schedule -> plans of activations -> model -> optimiser
//
// Example
//   JobBuilder builder(context, parts, binding);
//   TrainingJob job = builder.build(config);
//   builder.load_state(job);                       // from the newest checkpoint
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/tracker/build_tracker.h"

namespace d9d {

// TrainerParts without the types of the task.
struct JobParts {
  AnyTask& task;
  AnyModelProvider& model;
  OptimizerProvider& optimizer;
  LearningRateSchedulerProvider& lr_scheduler;
  std::shared_ptr<const Tracker> tracker;
  TrackerFactories trackers;
  std::optional<PipelineSchedule> pipeline_schedule;
};
[[nodiscard]] nlohmann::json hparams_of(const JobParts& parts);  // those of task and model

// Builds a training job. While it lives, the data stream stays open and the checkpoint folder stays locked for this
// job.
class JobBuilder {
 public:
  // All arguments are borrowed.
  JobBuilder(const DistContext& context, const JobParts& parts, TaskBinding& binding)
      : context_(context), parts_(parts), binding_(binding) {}

  // Collective, called once.
  [[nodiscard]] TrainingJob build(const TrainerConfig& given);
  // Collective. If the job resumes from a checkpoint, loads the state that build() has not loaded: of optimiser,
  // averages of the weights, learning-rate schedule, metrics, task and tracker.
  void load_state(TrainingJob& job);

  [[nodiscard]] PackReader& packs() const { return *packs_; }
  [[nodiscard]] const EvaluationPacks& evaluation_packs() const { return evaluation_packs_; }

 private:
  [[nodiscard]] nlohmann::json settings_of_parts() const;  // by part
  void check(const TrainerConfig& given);
  [[nodiscard]] std::unique_ptr<EventBus> announce() const;
  // Opens the data stream and the newest checkpoint. If there is one, continues the returned schedule from it, and the
  // stream too unless trainer.data_phase names other data.
  [[nodiscard]] JobSchedule open_data(const TrainerConfig& given, EventBus& events);
  // Whether the job reads on in the data of the checkpoint that it resumes from. Sets data_phase_.
  [[nodiscard]] bool continues_data(const TrainerConfig& given);
  void open_evaluation_data(const TrainerConfig& given);
  [[nodiscard]] PipelineSchedule pipeline_of(const TrainerConfig& config) const;

  const DistContext& context_;
  const JobParts& parts_;
  TaskBinding& binding_;
  std::jthread warm_up_;
  std::unique_ptr<PackReader> packs_;  // set by build()
  DataPhase data_phase_;
  EvaluationPacks evaluation_packs_;
  std::unique_ptr<FolderLock> saves_lock_;  // null except on the main process
  std::optional<SavedCheckpoint> saved_;    // cleared by load_state()
};

}  // namespace d9d
