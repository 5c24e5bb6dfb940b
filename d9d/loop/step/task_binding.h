// An interface to the calls of a job that depend on the types of its task: the trainer and the microbatch runner are
// compiled once, and a program only compiles TypedTask<Types> and Microbatch<Types>.
//
// Example
//   const std::unique_ptr<PackReader> packs = binding.build_packs(context, config, events);
//   const std::shared_ptr<AnyModelStage> stage = binding.initialize_stage(context, {});
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/pack_reader.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

class TaskBinding {
 public:
  virtual ~TaskBinding();

  // Called once, before the other functions. Triggers kTrainDataStreamReady.
  [[nodiscard]] virtual std::unique_ptr<PackReader> build_packs(const DistContext& context, const TrainerConfig& config,
                                                                EventBus& events) = 0;
  // Returns a stage of this rank whose parameters have no memory yet. Throws ConfigError if there are several stages
  // and the model cannot be split.
  [[nodiscard]] virtual std::shared_ptr<AnyModelStage> initialize_stage(const DistContext& context,
                                                                        const PipelineStageInfo& info) = 0;
  // Returns the packs of an evaluation set, with a prefetching thread of their own; null if the program has no set of
  // this name.
  [[nodiscard]] virtual std::unique_ptr<PackReader> build_evaluation_packs(const DistContext& context,
                                                                           const TrainerConfig& config,
                                                                           const std::string& set) = 0;

  [[nodiscard]] virtual std::vector<std::string> evaluation_sets() const = 0;  // for which the program has data
  // Returns DataProvider::dump_hparams() as {"data": ..., "evaluation_data": {"<set>": ...}}.
  [[nodiscard]] virtual nlohmann::json data_hparams() const = 0;

  [[nodiscard]] virtual bool has_key() const = 0;  // Microbatch<Types>::kHasKey
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

// The data of evaluation sets by name. The providers are borrowed.
template <class Types>
using EvaluationData = std::map<std::string, DataProvider<BatchOf<Types>>*>;

template <class Types>
class TypedTask final : public TaskBinding {
 public:
  // All arguments are borrowed.
  TypedTask(TrainTask<Types>& task, ModelProvider<Types>& model, DataProvider<BatchOf<Types>>& data,
            EvaluationData<Types> evaluation)
      : task_(task), model_(model), data_(data), evaluation_(std::move(evaluation)) {}

  std::unique_ptr<PackReader> build_packs(const DistContext& context, const TrainerConfig& config,
                                          EventBus& events) override {
    auto packs = packs_of(data_, context, config, config.schedule.total_steps);
    events.trigger(kTrainDataStreamReady<BatchOf<Types>>, {.stream = packs->stream()});
    return packs;
  }
  std::unique_ptr<PackReader> build_evaluation_packs(const DistContext& context, const TrainerConfig& config,
                                                     const std::string& set) override {
    const auto found = evaluation_.find(set);
    if (found == evaluation_.end() || found->second == nullptr) return nullptr;
    return packs_of(*found->second, context, config, std::nullopt);
  }
  std::shared_ptr<AnyModelStage> initialize_stage(const DistContext& context, const PipelineStageInfo& info) override {
    return initialized_stage(model_, context, info);
  }
  std::vector<std::string> evaluation_sets() const override {
    std::vector<std::string> names;
    for (const auto& [name, data] : evaluation_) names.push_back(name);
    return names;
  }
  nlohmann::json data_hparams() const override {
    nlohmann::json evaluation = nlohmann::json::object();
    for (const auto& [name, data] : evaluation_) evaluation[name] = data != nullptr ? data->dump_hparams() : nullptr;
    return {{"data", data_.dump_hparams()}, {"evaluation_data", evaluation}};
  }
  bool has_key() const override { return Microbatch<Types>::kHasKey; }

 private:
  std::unique_ptr<TypedPackReader<Types>> packs_of(DataProvider<BatchOf<Types>>& data, const DistContext& context,
                                                   const TrainerConfig& config,
                                                   std::optional<std::int64_t> total_steps) {
    auto packs = data.build_pack_stream(context, total_steps);
    check_built(packs != nullptr, "DataProvider::build_pack_stream", "a stream");
    return std::make_unique<TypedPackReader<Types>>(
        task_, std::move(packs),
        PrefetchOptions{
            .device = context.device(), .prefetch_factor = config.data_prefetch.prefetch_factor, .log = context.log()});
  }

  TrainTask<Types>& task_;
  ModelProvider<Types>& model_;
  DataProvider<BatchOf<Types>>& data_;
  const EvaluationData<Types> evaluation_;
};

}  // namespace d9d
