// An interface to the calls of a job that depend on the types of its task: the trainer and the microbatch runner are
// compiled once, and a program only compiles TypedTask<Types> and Microbatch<Types>.
//
// Example
//   AnyPackStream& stream = binding.build_pack_stream(context, config, events);
//   const std::shared_ptr<AnyModelStage> stage = binding.initialize_stage(context, {});
//   while (const auto pack = binding.next_pack()) ...
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "d9d/data/pack/prefetched_packs.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

class TaskBinding {
 public:
  virtual ~TaskBinding();

  // Called once, before the other functions. Triggers kTrainDataStreamReady.
  virtual AnyPackStream& build_pack_stream(const DistContext& context, const TrainerConfig& config,
                                           EventBus& events) = 0;
  // Returns a stage of this rank whose parameters have no memory yet. Throws ConfigError if there are several stages
  // and the model cannot be split.
  [[nodiscard]] virtual std::shared_ptr<AnyModelStage> initialize_stage(const DistContext& context,
                                                                        const PipelineStageInfo& info) = 0;

  [[nodiscard]] virtual bool has_key() const = 0;  // Microbatch<Types>::kHasKey

  // The next pack of the stream, with its tensors on the device; none at the end of the data.
  [[nodiscard]] std::optional<MicrobatchPack> next_pack();
  // The pack that next_pack() will return; null at the end of the data.
  [[nodiscard]] const MicrobatchPack* peek_pack();
  // The number of microbatches of the pack after the one that was taken last, if a thread has read it already. Does not
  // wait.
  [[nodiscard]] virtual std::optional<std::size_t> num_next() const = 0;

 private:
  [[nodiscard]] virtual std::optional<MicrobatchPack> read_pack() = 0;

  std::optional<MicrobatchPack> peeked_;
};

// Throws ConfigError if `stage` is one of several and the model cannot be split.
void check_can_be_cut(const PipelineStageInfo& stage, bool has_transfer, bool is_part);
// Throws StateError unless is_built: `function` of the program returned null instead of `what`.
void check_built(bool is_built, const char* function, const char* what);

// Returns a stage of the provider's model whose parameters have no memory yet.
template <class Types>
[[nodiscard]] std::shared_ptr<AnyModelStage> initialized_stage(ModelProvider<Types>& model, const DistContext& context,
                                                               const PipelineStageInfo& info) {
  ModelStage<Types> stage = model.initialize_model_stage(context, info);
  check_built(stage.module != nullptr && stage.forward != nullptr, "ModelProvider::initialize_model_stage",
              "a module and its forward, as as_model_stage() does");
  check_can_be_cut(info, kHasTransfer<Types>, stage.part.forward != nullptr);
  auto built = std::make_shared<BuiltModelStage<Types>>();
  built->info = info;
  built->module = std::move(stage.module);
  built->layers = stage.layers;
  built->forward = std::move(stage.forward);
  built->part = std::move(stage.part);
  return built;
}

template <class Types>
class TypedTask final : public TaskBinding {
 public:
  // All arguments are borrowed.
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
  std::shared_ptr<AnyModelStage> initialize_stage(const DistContext& context, const PipelineStageInfo& info) override {
    return initialized_stage(model_, context, info);
  }
  bool has_key() const override { return Microbatch<Types>::kHasKey; }
  std::optional<std::size_t> num_next() const override { return stream_->num_next(); }

 private:
  using Batch = BatchOf<Types>;

  std::optional<MicrobatchPack> read_pack() override {
    auto batches = stream_->next();
    if (!batches) return std::nullopt;
    MicrobatchPack pack;
    for (Batch& batch : *batches) pack.push_back(std::make_unique<Microbatch<Types>>(task_, std::move(batch)));
    return pack;
  }

  TrainTask<Types>& task_;
  ModelProvider<Types>& model_;
  DataProvider<Batch>& data_;
  std::unique_ptr<PrefetchedPacks<Batch>> stream_;
};

}  // namespace d9d
