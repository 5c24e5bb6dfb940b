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
#include <thread>
#include <utility>

#include "d9d/loop/component/cuda_graph_rules.h"
#include "d9d/loop/component/export_model.h"
#include "d9d/loop/component/job_checkpoints.h"
#include "d9d/loop/component/microbatch_runner.h"
#include "d9d/loop/component/model_stage_factory.h"
#include "d9d/loop/component/training_job.h"
#include "d9d/loop/component/warm_up.h"
#include "d9d/loop/config/unsupported.h"
#include "d9d/loop/control/providers.h"
#include "d9d/loop/control/task.h"
#include "d9d/loop/event/train_events.h"
#include "d9d/loop/run/training_run.h"
#include "d9d/modules/detect_non_finite.h"

namespace d9d {

// The parts are borrowed and must outlive the trainer, except for the tracker.
template <class Types>
struct TrainerParts {
  TrainTask<Types>& task;
  ModelProvider<Types>& model;
  DataProvider<BatchOf<Types>>& data;
  OptimizerProvider& optimizer;
  LearningRateSchedulerProvider& lr_scheduler;
  // A tracker of the program's own (docs/trackers.md), in addition to that of trainer.logging.tracker; opened on the
  // main process.
  std::shared_ptr<const Tracker> tracker;
};

template <class Types>
class Trainer {
 public:
  // Builds the job: handlers of events, the data (a number of steps that it cannot provide throws before any model is
  // built), the model, optimiser and schedule. Continues from the newest checkpoint in trainer.checkpointing.save_dir,
  // if there is one.
  Trainer(const DistContext& context, TrainerConfig config, const TrainerParts<Types>& parts)
      : parts_(parts), job_(build_job(context, std::move(config))) {
    if (saved_) {
      load(*saved_, job_);
      if (const auto states = task_states(*saved_); !states.empty()) parts_.task.load_state(states);
    }
    saved_.reset();
    job_.events->trigger(kTrainOptimizerReady, {.optimizer = job_.optimizer});
    job_.events->trigger(kTrainLRSchedulerReady, {.lr_scheduler = job_.lr_scheduler});
  }

  // Runs the remaining steps, then the task's finalize.
  TrainingOutcome train() {
    job_.hparams = {{"task", parts_.task.dump_hparams()}, {"model", parts_.model.dump_hparams()}};
    MicrobatchRunner<Types> runner(job_, parts_.task, *stream_, forward_);
    const TrainingOutcome outcome = run_training(job_, runner);
    graph_counts_ = runner.graph_counts();
    if (job_.config.cuda_graph && job_.context.is_main_process()) log_graph_counts();
    parts_.task.finalize();
    job_.events->trigger(kTrainFinished, {});
    return outcome;
  }

  // Collective. Writes the model as ModelProvider::prepare_export says, see write_model_state(). Before train() that is
  // the model of the newest checkpoint, if there is one.
  void export_to(const std::filesystem::path& directory) {
    export_model(job_, parts_.model.prepare_export(*job_.module), directory);
  }

  [[nodiscard]] Module& module() const { return *job_.module; }
  [[nodiscard]] const JobSchedule& schedule() const { return job_.schedule; }
  [[nodiscard]] const MetricMap& metrics() const { return job_.metrics; }
  // How many microbatches of the last train() were replayed from graphs.
  [[nodiscard]] const GraphCounts& graph_counts() const { return graph_counts_; }

 private:
  TrainingJob build_job(const DistContext& context, TrainerConfig config) {
    refuse_unsupported(context.mesh_parameters());
    refuse_unsupported(config);
    check_cuda_graph(context, config);
    warm_up_ = start_warm_up(context.device());

    auto events = std::make_unique<EventBus>();
    parts_.task.register_events(context, *events);
    parts_.model.register_events(context, *events);
    events->trigger(kTrainConfigStarted, {.dist_context = context});

    stream_ = parts_.data.build_pack_stream(context, config.schedule.total_steps);
    events->trigger(kTrainDataStreamReady<BatchOf<Types>>, {.stream = *stream_});
    check_data_order(context, stream_->state());
    JobSchedule schedule(total_steps_of(config.schedule.total_steps, stream_->total_steps()));
    saved_ = newest_checkpoint(context, config.checkpointing);
    if (saved_) {
      schedule.load_state(value_of(*saved_, "schedule"));
      stream_->load_state(value_of(*saved_, "data"));
    }
    stream_->start();  // so that the first step's data is ready when the model is

    const ModelStage<Types> stage = build_model_stage(context, config, parts_.model, /*resumes=*/saved_.has_value());
    forward_ = stage.forward;
    check_cuda_graph(config, *stage.module);
    if (config.detect_non_finite) detect_non_finite(*stage.module);
    if (saved_) {
      load_model(*saved_, context, *stage.module, config.model_stage_factory.checkpoint_only_trainable_parameters);
    }
    events->trigger(kTrainModelStagesReady, {.modules = {*stage.module}});

    RandomClockPtr clock = share_random_clock(context, *stage.module, config);
    MetricMap metrics = parts_.task.create_metrics();
    Optimizer optimizer = parts_.optimizer.build_optimizer(context, trainable_parameters(*stage.module));
    LearningRateScheduler lr_scheduler = parts_.lr_scheduler.build_scheduler(context, schedule.total_steps());
    return {.context = context,
            .config = std::move(config),
            .events = std::move(events),
            .schedule = schedule,
            .module = stage.module,
            .clock = std::move(clock),
            .metrics = std::move(metrics),
            .optimizer = std::move(optimizer),
            .lr_scheduler = std::move(lr_scheduler),
            .hparams = {},
            .tracker_state = nullptr,
            .tracker = parts_.tracker};
  }

  void log_graph_counts() const {
    job_.context.log().info("trainer.cuda_graph: ", graph_counts_.replays, " microbatches replayed from ",
                            graph_counts_.graphs, " graphs, ", graph_counts_.eager, " run as usual");
  }

  const TrainerParts<Types> parts_;
  std::jthread warm_up_;
  std::unique_ptr<PackStream<BatchOf<Types>>> stream_;
  ModelForward<Types> forward_;
  std::optional<SavedCheckpoint> saved_;  // from which the job continues, until it has done so
  TrainingJob job_;
  GraphCounts graph_counts_;
};

}  // namespace d9d
