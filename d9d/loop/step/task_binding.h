// The calls of a job that depend on the types of its task, behind an interface without them: the trainer and what runs
// microbatches are compiled once, and a program compiles TypedTask<Types> alone.
//
// Example
//   while (const auto num_microbatches = binding.fetch()) {
//     for (std::size_t i = 0; i < *num_microbatches; ++i) inputs.push_back(binding.build(i));
//     ...
//   }
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"
#include "d9d/data/pack/prefetched_packs.h"
#include "d9d/internals/pipeline_state/microbatch_states.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

// What TrainTask::build_forward_inputs said beside inputs and state.
struct BuiltMicrobatch {
  std::int64_t num_tokens = 0;
  LossWeights loss_weights = {};
};

class TaskBinding {
 public:
  virtual ~TaskBinding();

  // Called once each, in this order, when the job is built. The first triggers kTrainDataStreamReady.
  virtual AnyPackStream& build_pack_stream(const DistContext& context, const TrainerConfig& config,
                                           EventBus& events) = 0;
  // For each stage of this rank, in increasing order. ConfigError for one of several that cannot be cut.
  [[nodiscard]] virtual std::shared_ptr<Module> initialize_model_stage(const DistContext& context,
                                                                       const PipelineStageInfo& stage) = 0;

  // What the model says of its layers; none where it does not.
  [[nodiscard]] virtual std::optional<LayerDistribution> layer_distribution() const = 0;

  [[nodiscard]] virtual bool has_key() const = 0;  // Microbatch<Types>::kHasKey

  // PackStream::next(), on the device: the number of the pack's microbatches; none at the end of the data.
  [[nodiscard]] virtual std::optional<std::size_t> fetch() = 0;
  // The number of microbatches of the pack after that, if it was read already. Does not wait.
  [[nodiscard]] virtual std::optional<std::size_t> num_next() const = 0;
  // fetch() of a pack that the next call of fetch() returns again.
  [[nodiscard]] virtual std::optional<std::size_t> peek() = 0;
  // For measuring, between peek() and fetch(): builds the pack's first microbatch from a copy of it, anew at each call.
  // ConfigError for batches that cannot be copied.
  virtual BuiltMicrobatch build_copy() = 0;
  // Drops what build_copy() has built, and all stages that were initialized.
  virtual void end_measuring() = 0;
  // hash_of() the pack's first microbatch.
  [[nodiscard]] virtual std::optional<std::uint64_t> hash_of_first() const = 0;
  // Builds a microbatch's inputs and state, which are kept.
  virtual BuiltMicrobatch build(std::size_t microbatch) = 0;
  // Calls use(microbatch) once for a microbatch that was built, which may change it.
  virtual void with_microbatch(std::size_t microbatch, const std::function<void(AnyMicrobatch&)>& use) = 0;
  // Forward and TrainTask::compute_loss of a model in one piece.
  [[nodiscard]] virtual LossResult forward_with_loss(AnyMicrobatch& microbatch, const JobSchedule& schedule) = 0;

  // Of the stages that were initialized, `stage` is the index of one. Between stages a transfer is its leaves.
  using Leaves = std::vector<at::Tensor>;
  // On the meta device.
  [[nodiscard]] virtual Leaves transfer(std::size_t stage, std::size_t microbatch, StageBoundary boundary) const = 0;
  // arrived: unused on the first stage.
  [[nodiscard]] virtual Leaves forward(std::size_t stage, std::size_t microbatch, const Leaves& arrived) = 0;
  // The last stage's forward, and TrainTask::compute_loss.
  [[nodiscard]] virtual LossResult last_forward(std::size_t stage, std::size_t microbatch, const Leaves& arrived,
                                                const JobSchedule& schedule) = 0;
  virtual void drop_inputs(std::size_t microbatch) = 0;  // after the forward of the rank's last stage

  virtual void update_metrics(std::size_t microbatch, const MetricMap& metrics) = 0;
  virtual void reset() = 0;  // drops what is left of the pack
};

// ConfigError for one of several stages of a model that cannot be cut.
void check_can_be_cut(const PipelineStageInfo& stage, bool has_transfer, bool is_part);
// StateError unless the program's function returned what it must: `what`.
void check_built(bool is_built, const char* function, const char* what);
[[noreturn]] void refuse_copies();

template <class Types>
class TypedTask final : public TaskBinding {
 public:
  // All are borrowed.
  TypedTask(TrainTask<Types>& task, ModelProvider<Types>& model, DataProvider<BatchOf<Types>>& data)
      : task_(task), model_(model), data_(data) {}

  AnyPackStream& build_pack_stream(const DistContext& context, const TrainerConfig& config, EventBus& events) override {
    auto packs = data_.build_pack_stream(context, config.schedule.total_steps);
    check_built(packs != nullptr, "DataProvider::build_pack_stream", "a stream");
    stream_ = std::make_unique<PrefetchedPacks<Batch>>(
        std::move(packs),
        PrefetchOptions{
            .device = context.device(), .prefetch_factor = config.data_prefetch.prefetch_factor, .log = context.log()});
    events.trigger(kTrainDataStreamReady<Batch>, {.stream = *stream_});
    return *stream_;
  }
  std::shared_ptr<Module> initialize_model_stage(const DistContext& context, const PipelineStageInfo& stage) override {
    ModelStage<Types> built = model_.initialize_model_stage(context, stage);
    check_built(built.module != nullptr && built.forward != nullptr, "ModelProvider::initialize_model_stage",
                "a module and its forward, as as_model_stage() does");
    check_can_be_cut(stage, kHasTransfer<Types>, built.part.forward != nullptr);
    stages_.push_back(std::move(built));
    infos_.push_back(stage);
    return stages_.back().module;
  }

  std::optional<LayerDistribution> layer_distribution() const override {
    return stages_.empty() ? std::nullopt : stages_.front().layers;
  }

  bool has_key() const override { return Microbatch<Types>::kHasKey; }

  std::optional<std::size_t> fetch() override {
    if (std::exchange(has_peeked_, false)) return pack_.size();
    auto pack = stream_->next();
    if (!pack) return std::nullopt;
    pack_ = std::move(*pack);
    return pack_.size();
  }
  std::optional<std::size_t> num_next() const override { return stream_->num_next(); }
  std::optional<std::size_t> peek() override {
    const auto size = fetch();
    has_peeked_ = size.has_value();
    return size;
  }
  BuiltMicrobatch build_copy() override {
    inputs_.clear();
    states_.reset();
    if constexpr (std::copy_constructible<Batch>) {
      Batch original = pack_.front();
      tree_for_each_leaf(pack_.front(), [](at::Tensor& leaf) {
        if (leaf.defined()) leaf = leaf.clone();
      });
      BuiltMicrobatch built = build(0);
      pack_.front() = std::move(original);
      return built;
    } else {
      refuse_copies();
    }
  }
  void end_measuring() override {
    inputs_.clear();
    states_.reset();
    stages_.clear();
    infos_.clear();
  }
  std::optional<std::uint64_t> hash_of_first() const override {
    return pack_.empty() ? std::nullopt : hash_of(pack_.front());
  }
  BuiltMicrobatch build(std::size_t microbatch) override {
    const Batch batch = std::move(pack_[microbatch]);
    ForwardInputs<Types> built = task_.build_forward_inputs(batch);
    states_.store(static_cast<std::int64_t>(microbatch), std::move(built.state));
    inputs_.emplace_back(std::in_place, std::move(built.input), std::move(built.shared));
    return {.num_tokens = built.num_tokens, .loss_weights = std::move(built.loss_weights)};
  }
  void with_microbatch(std::size_t index, const std::function<void(AnyMicrobatch&)>& use) override {
    states_.with(static_cast<std::int64_t>(index), [&](State& state) {
      auto& [input, shared] = *inputs_[index];
      Microbatch<Types> microbatch(std::move(input), std::move(shared), std::move(state));
      use(microbatch);
      input = std::move(microbatch.input);
      shared = std::move(microbatch.shared);
      state = std::move(microbatch.state);
    });
  }
  LossResult forward_with_loss(AnyMicrobatch& any, const JobSchedule& schedule) override {
    auto& microbatch = static_cast<Microbatch<Types>&>(any);
    const OutputOf<Types> output =
        with_error_place("in forward", [&] { return stages_.front().forward(microbatch.input, microbatch.shared); });
    return with_error_place("in compute_loss", [&] { return task_.compute_loss(output, microbatch.state, schedule); });
  }
  Leaves transfer(std::size_t stage, std::size_t microbatch, StageBoundary boundary) const override {
    if constexpr (kHasTransfer<Types>) {
      D9D_ASSERT(inputs_[microbatch].has_value(), "microbatch ", microbatch, " without inputs");
      return tree_leaves(stages_[stage].part.transfer(inputs_[microbatch]->first, boundary));
    } else {
      return {};
    }
  }
  Leaves forward(std::size_t stage, std::size_t microbatch, const Leaves& arrived) override {
    if constexpr (kHasTransfer<Types>) {
      return tree_leaves(with_error_place("in forward", [&] {
        return stages_[stage].part.forward(arrived_tree(stage, microbatch, arrived), inputs_[microbatch]->second);
      }));
    } else {
      return {};
    }
  }
  LossResult last_forward(std::size_t stage, std::size_t microbatch, const Leaves& arrived,
                          const JobSchedule& schedule) override {
    const OutputOf<Types> output = with_error_place("in forward", [&] {
      const auto& [input, shared] = *inputs_[microbatch];
      if constexpr (kHasTransfer<Types>) {
        if (!infos_[stage].is_first()) {
          return stages_[stage].part.last_forward(arrived_tree(stage, microbatch, arrived), shared);
        }
      }
      return stages_[stage].forward(input, shared);
    });
    return states_.with(static_cast<std::int64_t>(microbatch), [&](State& state) {
      return with_error_place("in compute_loss", [&] { return task_.compute_loss(output, state, schedule); });
    });
  }
  void drop_inputs(std::size_t microbatch) override { inputs_[microbatch].reset(); }
  void update_metrics(std::size_t microbatch, const MetricMap& metrics) override {
    states_.with(static_cast<std::int64_t>(microbatch),
                 [&](const State& state) { task_.update_metrics(state, metrics); });
  }
  void reset() override {
    pack_.clear();
    inputs_.clear();
    states_.reset();
  }

 private:
  using Batch = BatchOf<Types>;
  using State = StateOf<Types>;

  [[nodiscard]] typename ModelPart<Types>::Arrived arrived_tree(std::size_t stage, std::size_t microbatch,
                                                                const Leaves& arrived) const {
    using Arrived = typename ModelPart<Types>::Arrived;
    const InputOf<Types>& input = inputs_[microbatch]->first;
    if (infos_[stage].is_first()) return Arrived(std::in_place_index<0>, input);
    const auto like = tree_flatten(stages_[stage].part.transfer(input, StageBoundary::kIncoming));
    return Arrived(std::in_place_index<1>, tree_unflatten(like.spec, arrived));
  }

  TrainTask<Types>& task_;
  ModelProvider<Types>& model_;
  DataProvider<Batch>& data_;
  std::unique_ptr<PrefetchedPacks<Batch>> stream_;
  std::vector<ModelStage<Types>> stages_;
  std::vector<PipelineStageInfo> infos_;  // of the stages
  std::vector<Batch> pack_;
  bool has_peeked_ = false;  // pack_ is that of the next step
  std::vector<std::optional<std::pair<InputOf<Types>, SharedOf<Types>>>> inputs_;
  MicrobatchStates<State> states_;
};

}  // namespace d9d
