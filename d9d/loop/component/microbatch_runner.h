// Runs the microbatches of a pack one after the other: each one's backward runs before the next one's forward, so that
// the activations of only one microbatch are in memory.
//
//   pack -> to the device, TrainTask::build_forward_inputs        all microbatches
//        -> forward -> compute_loss -> backward -> update_metrics  one microbatch at a time
//
// Example
//   MicrobatchRunner<MyTypes> runner(job, task, stream, stage.forward);
//   while (runner.fetch()) runner.run(gradients);
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/tree/tree.h"
#include "d9d/data/pack/pack_stream.h"
#include "d9d/internals/pipeline_state/microbatch_states.h"
#include "d9d/loop/component/first_step_checks.h"
#include "d9d/loop/component/loss_shares.h"
#include "d9d/loop/component/microbatch_graphs.h"
#include "d9d/loop/component/microbatch_numbers.h"
#include "d9d/loop/component/pack_runner.h"
#include "d9d/loop/component/training_job.h"
#include "d9d/loop/control/providers.h"
#include "d9d/loop/control/task.h"

namespace d9d {

template <class Types>
class MicrobatchRunner final : public PackRunner {
 public:
  using Batch = BatchOf<Types>;
  using State = StateOf<Types>;

  // All are borrowed.
  MicrobatchRunner(const TrainingJob& job, TrainTask<Types>& task, PackStream<Batch>& stream,
                   const ModelForward<Types>& forward)
      : job_(job), task_(task), stream_(stream), forward_(forward) {
    install_checkpoint_engine();  // errors name the operation of backward
    const c10::Device device = job.context.device();
    if (job.config.cuda_graph) {
      graphs_.emplace(*job.config.cuda_graph, cuda_graphs(device), device, *job.module);
    }
  }

  [[nodiscard]] nlohmann::json data_state() const override { return stream_.state(); }
  [[nodiscard]] nlohmann::json task_state() const override { return task_.state(); }
  [[nodiscard]] GraphCounts graph_counts() const { return graphs_ ? graphs_->counts() : GraphCounts(); }

  bool fetch() override {
    auto pack = stream_.next();
    if (!pack) return false;
    pack_ = std::move(*pack);
    numbers_ = microbatch_numbers(job_.context, stream_.microbatch_numbers(), pack_.size());
    return true;
  }

  std::int64_t run(GradientManager& gradients) override {
    struct ResetStates {
      MicrobatchStates<State>& states;
      ~ResetStates() { states.reset(); }
    } reset_states{states_};
    if (is_first_step_) {
      first_step_.emplace(job_.context);
      if (job_.config.refuse_equal_data) first_step_->check_packs(first_pack());
    }
    std::int64_t num_tokens = 0;
    std::vector<std::pair<InputOf<Types>, SharedOf<Types>>> inputs;
    std::vector<LossWeights> weights;
    for (std::size_t i = 0; i < pack_.size(); ++i) {
      auto built =
          in_microbatch(i, "in build_forward_inputs", [&] { return task_.build_forward_inputs(to_device(pack_[i])); });
      num_tokens += built.num_tokens;
      states_.store(static_cast<std::int64_t>(i), std::move(built.state));
      inputs.emplace_back(std::move(built.input), std::move(built.shared));
      weights.push_back(std::move(built.loss_weights));
    }
    pack_.clear();
    std::vector<LossShares> shares = loss_shares(job_.context, weights);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      job_.clock->microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()),
                                .number = numbers_[i]};
      const auto index = static_cast<std::int64_t>(i);
      states_.with(index, [&](State& state) {
        Microbatch<Types> microbatch(std::move(inputs[i].first), std::move(inputs[i].second), std::move(state),
                                     std::move(shares[i]));
        const WeightedLoss loss = in_microbatch(
            i, "in training", [&] { return run_microbatch(microbatch, i + 1 == inputs.size(), gradients); });
        gradients.add_loss_with_weight(loss.loss, loss.weight);
        for (const auto& [name, own] : loss.losses) update_mean(name, own, weights[i].at(name));
        state = std::move(std::get<2>(microbatch));
      });
      states_.with(index, [&](const State& state) {
        in_microbatch(i, "in update_metrics", [&] { task_.update_metrics(state, job_.metrics); });
      });
    }
    states_.reset();  // they may refer to graphs
    if (first_step_) first_step_->warn(*job_.module);
    first_step_.reset();
    is_first_step_ = false;
    return num_tokens;
  }

 private:
  FirstPack first_pack() const {
    FirstPack first{.num_microbatches = std::ssize(pack_)};
    if (!pack_.empty()) first.hash = hash_of(pack_.front());
    if (const auto numbers = stream_.microbatch_numbers(); !numbers.empty()) first.number = numbers.front();
    return first;
  }

  // Errors of `work` say which microbatch it is, and `place` where nothing within says more.
  template <class Work>
  auto in_microbatch(std::size_t index, const char* place, const Work& work) const {
    try {
      return with_error_place(place, work);
    } catch (const std::exception&) {
      add_error_place(cat("microbatch ", index, " of step ", job_.schedule.current_step()));
      throw;
    }
  }

  Batch to_device(const Batch& batch) const {
    const c10::Device device = job_.context.device();
    return tree_map([&](const at::Tensor& leaf) { return leaf.to(device, leaf.scalar_type(), /*non_blocking=*/true); },
                    batch);
  }

  WeightedLoss run_microbatch(Microbatch<Types>& microbatch, bool is_last, GradientManager& gradients) {
    if (graphs_) {
      return graphs_->run(microbatch, is_last, gradients, [&](auto& one, bool is_captured) {
        return is_captured ? capture(one) : forward_backward(one, job_.schedule);
      });
    }
    gradients.begin_microbatch(is_last);
    WeightedLoss loss = forward_backward(microbatch, job_.schedule);
    gradients.end_microbatch();
    return loss;
  }

  void update_mean(const std::string& name, const at::Tensor& loss, const at::Tensor& weight) {
    auto& mean = (*job_.loss_means)["loss/" + name];
    if (mean == nullptr) mean = std::make_shared<MeanMetric>();
    static_cast<MeanMetric&>(*mean).update(loss, weight);
  }

  WeightedLoss forward_backward(Microbatch<Types>& microbatch, const JobSchedule& schedule) {
    auto& [input, shared, state, shares] = microbatch;
    const OutputOf<Types> output = with_error_place("in forward", [&] { return forward_(input, shared); });
    WeightedLoss weighted = with_error_place(
        "in compute_loss", [&] { return weighted_loss(task_.compute_loss(output, state, schedule), shares); });
    if (first_step_ && !job_.clock->is_captured) first_step_->watch(weighted.loss);
    with_error_place("in backward", [&] { weighted.loss.mul(weighted.weight).backward(); });
    return {.loss = weighted.loss.detach(), .weight = weighted.weight.detach(), .losses = std::move(weighted.losses)};
  }

  // Throws for what a replay would not repeat: asking for the step's number, and drawing random numbers.
  WeightedLoss capture(Microbatch<Types>& microbatch) {
    struct EndCapture {
      bool& is_captured;
      ~EndCapture() { is_captured = false; }
    } const end_capture{job_.clock->is_captured = true};
    return forward_backward(microbatch, job_.schedule.without_step());
  }

  const TrainingJob& job_;
  TrainTask<Types>& task_;
  PackStream<Batch>& stream_;
  const ModelForward<Types>& forward_;
  std::vector<Batch> pack_;
  std::vector<std::uint64_t> numbers_;  // of the pack's microbatches, within the step over all ranks
  MicrobatchStates<State> states_;
  bool is_first_step_ = true;
  std::optional<FirstStep> first_step_;            // while that one runs
  std::optional<MicrobatchGraphs<Types>> graphs_;  // none without trainer.cuda_graph
};

}  // namespace d9d
