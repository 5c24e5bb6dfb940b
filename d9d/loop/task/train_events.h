// The events of a training job, in the order in which they are triggered. docs/training.md has a table of them.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/offload/offload.h"
#include "d9d/data/pack/pack_stream.h"
#include "d9d/loop/task/event_bus.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/loop/task/stop_request.h"
#include "d9d/lr_scheduler/learning_rate_scheduler.h"
#include "d9d/modules/module.h"
#include "d9d/optim/optimizer.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

// Contexts of the events. References to folders, set names, values and errors are valid until the handler returns, the
// reference of TrainReady until the end of the run, and all others as long as the trainer exists.
struct ConfigurationStarted {
  const DistContext& dist_context;
};
template <class Batch>
struct DataStreamReady {
  PackStream<Batch>& stream;
};
struct ModelStagesReady {
  std::vector<std::reference_wrapper<Module>> modules;  // the stages of this rank
};
struct OptimizerReady {
  Optimizer& optimizer;
};
struct LRSchedulerReady {
  LearningRateScheduler& lr_scheduler;
};
struct TrainReady {
  TrackerRun& run;  // writes on the main process only: gather values of other ranks there
};
struct TrainStep {
  const JobSchedule& schedule;  // current_step() is the index of the running step
  StopRequest& stop;
};
// Values are over all ranks and the same on each rank, unless a comment says otherwise.
struct FinishedStep : TrainStep {
  double loss = 0.0;
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  std::int64_t num_tokens = 0;
  double seconds = 0.0;     // on this rank
  bool is_updated = false;  // false: the step changed nothing, such as a skipped step with a non-finite loss
};
struct EvaluationEvent {
  const JobSchedule& schedule;  // current_step() is the number of steps that were done
  StopRequest& stop;
  const std::string& set;  // name in trainer.evaluation
};
struct FinishedEvaluation : EvaluationEvent {
  const std::map<std::string, double>& values;  // over all ranks: "loss", "loss/<name>" of several losses, metrics
  bool is_best = false;                         // of this set so far; false without trainer.evaluation.<set>.best

  // Returns one of `values`. Throws StateError that lists their names if there is none of this name.
  [[nodiscard]] double value(const std::string& name) const;
};
struct TrainFinished {};
struct CheckpointEvent {
  std::int64_t step;  // number of steps that were done
  const std::filesystem::path& folder;
};
struct TrainSleep {
  SleepTags tags;  // those that begin to sleep, or wake
};
struct TrainFailed {
  const std::exception& error;
};

// Triggered when all handlers are registered and nothing is built yet.
inline constexpr Event<ConfigurationStarted> kTrainConfigStarted{"train.configuration.start"};
// Triggered when the data stream is built. Batch: the task's batch type, as in kTrainDataStreamReady<TokenBatch>.
template <class Batch>
inline constexpr Event<DataStreamReady<Batch>> kTrainDataStreamReady{"train.configuration.data_stream"};
// Triggered when the stages have storage and their values, which may come from a checkpoint.
inline constexpr Event<ModelStagesReady> kTrainModelStagesReady{"train.configuration.model_stages"};
// Triggered if the job continues from a checkpoint, when the whole checkpoint is loaded.
inline constexpr Event<CheckpointEvent> kTrainCheckpointLoaded{"train.checkpoint.loaded"};
// The next two are triggered when both the optimiser and the learning-rate scheduler exist.
inline constexpr Event<OptimizerReady> kTrainOptimizerReady{"train.configuration.optimizer"};
inline constexpr Event<LRSchedulerReady> kTrainLRSchedulerReady{"train.configuration.lr_scheduler"};

// Triggered before the first step; the tracker's run is open.
inline constexpr Event<TrainReady> kTrainReady{"train.ready"};
// Triggered before the step's data is fetched.
inline constexpr Event<TrainStep> kTrainStepPre{"train.step.pre"};
// Triggered before and after the forwards and backwards of all microbatches.
inline constexpr Event<TrainStep> kTrainForwardBackwardPre{"train.forward_backward.pre"};
inline constexpr Event<TrainStep> kTrainForwardBackwardPost{"train.forward_backward.post"};
// Triggered before and after the optimiser's step, whose gradients are already divided and clipped. Not triggered in a
// skipped step.
inline constexpr Event<TrainStep> kTrainOptimizerStepPre{"train.optimizer_step.pre"};
inline constexpr Event<TrainStep> kTrainOptimizerStepPost{"train.optimizer_step.post"};
// Triggered after the step's values are given to the log and its gradients cleared; current_step() is still this step.
inline constexpr Event<FinishedStep> kTrainStepPost{"train.step.post"};
// Triggered before and after each evaluation, which runs when the step is counted and before its checkpoint is saved.
// kTrainEvaluationPost is not triggered if a signal ends the evaluation.
inline constexpr Event<EvaluationEvent> kTrainEvaluationPre{"train.evaluation.pre"};
inline constexpr Event<FinishedEvaluation> kTrainEvaluationPost{"train.evaluation.post"};
// Triggered on all ranks in the step in which they learn that a checkpoint is complete on disk, after the votes of that
// step (rank_votes.h). For the last checkpoint of a run, triggered at the end of the run.
inline constexpr Event<CheckpointEvent> kTrainCheckpointSaved{"train.checkpoint.saved"};
// Triggered before and after the job goes to sleep, and before and after it wakes (Trainer::sleep, wake): not if it
// sleeps, or is awake, already. Between kTrainSleepPost and kTrainWakePost tensors cannot be used, nor, if `comms`
// sleeps, communicators.
inline constexpr Event<TrainSleep> kTrainSleepPre{"train.sleep.pre"};
inline constexpr Event<TrainSleep> kTrainSleepPost{"train.sleep.post"};
inline constexpr Event<TrainSleep> kTrainWakePre{"train.wake.pre"};
inline constexpr Event<TrainSleep> kTrainWakePost{"train.wake.post"};
// Triggered on a rank whose Trainer::train() ends with an exception, which is then rethrown. Other ranks may have
// failed or may be waiting for this one, so a handler must not communicate. Exceptions of the handler are ignored.
inline constexpr Event<TrainFailed> kTrainFailed{"train.failed"};
// Triggered after the task's finalize, also when the job was interrupted.
inline constexpr Event<TrainFinished> kTrainFinished{"train.finished"};

}  // namespace d9d
