// Wires the parts of a training job and runs it.
//
// Example
//   Trainer<MyTypes> trainer(context, config.trainer,
//                            {.task = task, .model = model_provider, .data = data_provider,
//                             .optimizer = optimizer_provider, .lr_scheduler = lr_provider});
//   if (trainer.train() == TrainingOutcome::kFinished) trainer.export_to(config.export_to);
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "d9d/core/tree/tree.h"
#include "d9d/internals/pipeline_state/microbatch_states.h"
#include "d9d/loop/component/cuda_graph_rules.h"
#include "d9d/loop/component/microbatch_graphs.h"
#include "d9d/loop/component/microbatch_numbers.h"
#include "d9d/loop/component/model_stage_factory.h"
#include "d9d/loop/component/warm_up.h"
#include "d9d/loop/config/refuse_unbuilt.h"
#include "d9d/loop/control/providers.h"
#include "d9d/loop/control/task.h"
#include "d9d/loop/event/train_events.h"
#include "d9d/loop/run/training_run.h"

namespace d9d {

// Borrowed, but for the tracker; each outlives the trainer.
template <class Types>
struct TrainerParts {
  TrainTask<Types>& task;
  ModelProvider<Types>& model;
  DataProvider<typename Types::Batch>& data;
  OptimizerProvider& optimizer;
  LearningRateSchedulerProvider& lr_scheduler;
  // One of the program's own (docs/trackers.md), beside what trainer.logging.tracker says; opened on the main process.
  std::shared_ptr<const Tracker> tracker;
};

template <class Types>
class Trainer {
 public:
  // Builds the job: handlers of events, the data (a step budget that it cannot fill fails before any model is built),
  // the model, optimiser and schedule.
  Trainer(const DistContext& context, TrainerConfig config, const TrainerParts<Types>& parts)
      : context_(context),
        config_(checked(context, std::move(config))),
        parts_(parts),
        warm_up_(start_warm_up(context.device())),
        events_(build_events()),
        stream_(build_stream()),
        schedule_(total_steps_of(config_.schedule.total_steps, stream_->total_steps())),
        stage_(build_stage()),
        metrics_(parts.task.create_metrics()),
        optimizer_(parts.optimizer.build_optimizer(context, *stage_.module)),
        lr_scheduler_(parts.lr_scheduler.build_scheduler(context, schedule_.total_steps())) {
    events_.trigger(kTrainOptimizerReady, {.optimizer = optimizer_});
    events_.trigger(kTrainLRSchedulerReady, {.lr_scheduler = lr_scheduler_});
  }

  // Runs the steps that are left, then the task's finalize.
  TrainingOutcome train() {
    const nlohmann::json hparams = {{"task", parts_.task.dump_hparams()}, {"model", parts_.model.dump_hparams()}};
    Runner runner(*this);
    const TrainingOutcome outcome = run_training({.context = context_,
                                                  .config = config_,
                                                  .module = *stage_.module,
                                                  .packs = runner,
                                                  .optimizer = optimizer_,
                                                  .lr_scheduler = lr_scheduler_,
                                                  .schedule = schedule_,
                                                  .metrics = metrics_,
                                                  .hparams = hparams,
                                                  .tracker = parts_.tracker,
                                                  .events = events_});
    graph_counts_ = runner.graph_counts();
    if (config_.cuda_graph && context_.is_main_process()) report(graph_counts_);
    parts_.task.finalize();
    events_.trigger(kTrainFinished, {});
    return outcome;
  }

  // Writes the model as the provider exports it.
  void export_to(const std::filesystem::path& directory) {
    parts_.model.export_model_stage(context_, *stage_.module, directory);
  }

  [[nodiscard]] Module& module() const { return *stage_.module; }
  [[nodiscard]] const JobSchedule& schedule() const { return schedule_; }
  [[nodiscard]] const MetricMap& metrics() const { return metrics_; }
  // How much of the last train() was replayed.
  [[nodiscard]] const GraphCounts& graph_counts() const { return graph_counts_; }

 private:
  static TrainerConfig checked(const DistContext& context, TrainerConfig config) {
    refuse_unbuilt(context.mesh_parameters());
    refuse_unbuilt(config);
    check_cuda_graph(context, config);
    return config;
  }

  void report(const GraphCounts& counts) const {
    context_.log().info("trainer.cuda_graph: ", counts.replays, " microbatches replayed from ", counts.graphs,
                        " graphs, ", counts.others, " run as usual");
  }

  EventBus build_events() const {
    EventBus events;
    parts_.task.register_events(context_, events);
    parts_.model.register_events(context_, events);
    events.trigger(kTrainConfigStarted, {.dist_context = context_});
    return events;
  }

  std::unique_ptr<PackStream<typename Types::Batch>> build_stream() {
    auto stream = parts_.data.build_pack_stream(context_, config_.schedule.total_steps);
    events_.trigger(kTrainDataStreamReady<typename Types::Batch>, {.stream = *stream});
    stream->start();  // the first step's data is there when the model is
    return stream;
  }

  ModelStage<Types> build_stage() {
    ModelStage<Types> stage = build_model_stage(context_, config_, parts_.model);
    check_cuda_graph(config_, *stage.module);
    events_.trigger(kTrainModelStagesReady, {.modules = {*stage.module}});
    return stage;
  }

  // One microbatch after the other, each forward and backward before the next: one microbatch of activations.
  class Runner final : public PackRunner {
   public:
    explicit Runner(Trainer& trainer) : trainer_(trainer) {
      const auto& config = trainer.config_.cuda_graph;
      const c10::Device device = trainer.context_.device();
      if (config) graphs_.emplace(*config, cuda_graphs(device), device, *trainer.stage_.module);
    }

    [[nodiscard]] GraphCounts graph_counts() const { return graphs_ ? graphs_->counts() : GraphCounts(); }

    bool fetch() override {
      auto pack = trainer_.stream_->next();
      if (!pack) return false;
      pack_ = std::move(*pack);
      numbers_ = microbatch_numbers(trainer_.context_, trainer_.stream_->microbatch_numbers(), pack_.size());
      return true;
    }

    std::int64_t run(GradientManager& gradients, const JobSchedule& schedule) override {
      struct ResetStates {
        MicrobatchStates<typename Types::State>& states;
        ~ResetStates() { states.reset(); }
      } reset_states{states_};
      std::int64_t num_tokens = 0;
      std::vector<std::pair<typename Types::Input, typename Types::Shared>> inputs;
      for (std::size_t i = 0; i < pack_.size(); ++i) {
        auto built = trainer_.parts_.task.build_forward_inputs(to_device(pack_[i]));
        num_tokens += built.num_tokens;
        states_.store(static_cast<std::int64_t>(i), std::move(built.state));
        inputs.emplace_back(std::move(built.input), std::move(built.shared));
      }
      pack_.clear();
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        trainer_.clock_->microbatch = {.step = static_cast<std::uint64_t>(schedule.current_step()),
                                       .number = numbers_[i]};
        const auto index = static_cast<std::int64_t>(i);
        states_.with(index, [&](typename Types::State& state) {
          Microbatch<Types> microbatch(std::move(inputs[i].first), std::move(inputs[i].second), std::move(state));
          run_microbatch(microbatch, /*is_last=*/i + 1 == inputs.size(), gradients, schedule);
          state = std::move(std::get<2>(microbatch));
        });
        states_.with(index, [&](const typename Types::State& state) {
          trainer_.parts_.task.update_metrics(state, trainer_.metrics_);
        });
      }
      return num_tokens;
    }

   private:
    typename Types::Batch to_device(const typename Types::Batch& batch) const {
      const c10::Device device = trainer_.context_.device();
      return tree_map(
          [&](const at::Tensor& leaf) { return leaf.to(device, leaf.scalar_type(), /*non_blocking=*/true); }, batch);
    }

    void run_microbatch(Microbatch<Types>& microbatch, bool is_last, GradientManager& gradients,
                        const JobSchedule& schedule) {
      if (graphs_) {
        const WeightedLoss loss = graphs_->run(microbatch, is_last, gradients, [&](auto& one, bool is_captured) {
          return is_captured ? capture(one, schedule) : forward_backward(one, schedule);
        });
        gradients.add_loss_with_weight(loss.loss, loss.weight);
        return;
      }
      gradients.begin_microbatch(is_last);
      const WeightedLoss loss = forward_backward(microbatch, schedule);
      gradients.add_loss_with_weight(loss.loss, loss.weight);
      gradients.end_microbatch();
    }

    WeightedLoss forward_backward(Microbatch<Types>& microbatch, const JobSchedule& schedule) {
      auto& [input, shared, state] = microbatch;
      const typename Types::Output output = trainer_.stage_.forward(input, shared);
      const WeightedLoss weighted = weighted_loss(trainer_.parts_.task.compute_loss(output, state, schedule));
      weighted.loss.mul(weighted.weight).backward();
      return {.loss = weighted.loss.detach(), .weight = weighted.weight.detach()};
    }

    // What a replay would not ask again is refused.
    WeightedLoss capture(Microbatch<Types>& microbatch, const JobSchedule& schedule) {
      struct Hidden {
        bool& is_captured;
        ~Hidden() { is_captured = false; }
      } const hidden{trainer_.clock_->is_captured = true};
      return forward_backward(microbatch, schedule.without_step());
    }

    Trainer& trainer_;
    std::vector<typename Types::Batch> pack_;
    std::vector<std::uint64_t> numbers_;  // of its microbatches, over all ranks
    MicrobatchStates<typename Types::State> states_;
    std::optional<MicrobatchGraphs<Types>> graphs_;  // none: no graphs
  };

  const DistContext& context_;
  const TrainerConfig config_;
  const TrainerParts<Types> parts_;
  const std::jthread warm_up_;
  EventBus events_;
  std::unique_ptr<PackStream<typename Types::Batch>> stream_;
  JobSchedule schedule_;
  ModelStage<Types> stage_;
  RandomClockPtr clock_ = share_random_clock(context_, *stage_.module, config_);
  MetricMap metrics_;
  Optimizer optimizer_;
  LearningRateScheduler lr_scheduler_;
  GraphCounts graph_counts_;
};

}  // namespace d9d
