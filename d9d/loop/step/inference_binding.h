// An interface to the calls of an inference job that depend on the types of its task, as TaskBinding is for training.
#pragma once

#include <memory>
#include <utility>

#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/pack_reader.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/task/inference_events.h"
#include "d9d/loop/task/inference_task.h"
#include "d9d/loop/task/providers.h"

namespace d9d {

class InferenceBinding {
 public:
  virtual ~InferenceBinding();

  // Triggers kInferenceDataStreamReady.
  [[nodiscard]] virtual std::unique_ptr<PackReader> build_packs(const DistContext& context,
                                                                const InferenceConfig& config, EventBus& events) = 0;
  // As TaskBinding::initialize_stage().
  [[nodiscard]] virtual std::shared_ptr<AnyModelStage> initialize_stage(const DistContext& context,
                                                                        const PipelineStageInfo& info) = 0;
};

template <class Types>
class TypedInference final : public InferenceBinding {
 public:
  // All arguments are borrowed.
  TypedInference(InferenceTask<Types>& task, ModelProvider<Types>& model, DataProvider<BatchOf<Types>>& data)
      : task_(task), model_(model), data_(data) {}

  std::unique_ptr<PackReader> build_packs(const DistContext& context, const InferenceConfig& config,
                                          EventBus& events) override {
    auto stream = data_.build_pack_stream(context, config.schedule.total_steps);
    check_built(stream != nullptr, "DataProvider::build_pack_stream", "a stream");
    auto packs = std::make_unique<TypedPackReader<Types, InferenceTask<Types>>>(
        task_, std::move(stream),
        PrefetchOptions{
            .device = context.device(), .prefetch_factor = config.data_prefetch.prefetch_factor, .log = context.log()});
    events.trigger(kInferenceDataStreamReady<BatchOf<Types>>, {.stream = packs->stream()});
    return packs;
  }
  std::shared_ptr<AnyModelStage> initialize_stage(const DistContext& context, const PipelineStageInfo& info) override {
    return initialized_stage(model_, context, info);
  }

 private:
  InferenceTask<Types>& task_;
  ModelProvider<Types>& model_;
  DataProvider<BatchOf<Types>>& data_;
};

}  // namespace d9d
