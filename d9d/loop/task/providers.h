// The parts of a training job that its author provides: model, data, optimiser, learning rate. Each builder of data,
// optimiser and learning rate is called once. Those of a model are called once for each stage of the rank, before that
// for stages that trainer.pipelining.schedule = auto measures and drops, and after that for those of a frozen copy
// (ReferenceWeights).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/data/pack/pack_stream.h"
#include "d9d/loop/task/event_bus.h"
#include "d9d/loop/task/model_stage.h"
#include "d9d/loop/task/replicate_over_data.h"
#include "d9d/loop/task/trainable_parameters.h"
#include "d9d/lr_scheduler/learning_rate_scheduler.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/model_export.h"
#include "d9d/modules/module.h"
#include "d9d/optim/optimizer.h"
#include "d9d/peft/config.h"
#include "d9d/peft/peft_folder.h"
#include "d9d/pipelining/api/stage_info.h"

namespace d9d {

// The part of a model provider that does not depend on the types of the task.
class AnyModelProvider {
 public:
  virtual ~AnyModelProvider();

  // What of the model is trained, and with which adapters. The loop injects it into each stage after
  // initialize_model_stage() (d9d/peft/inject.h). By default none: parameters are trained that require gradients.
  [[nodiscard]] virtual std::optional<PeftConfig> adapters() const;
  // Declares the layout of parameters, before storage exists. By default replicate_over_data().
  virtual void parallelize_model_stage(const DistContext& context, const PipelineStageInfo& stage, Module& module);
  // Returns the mapper from the tensors of the folder trainer.model_stage_factory.source_checkpoint to the parameters
  // of the stage; only the mapper's outputs are loaded. By default, parameters are loaded by their names (own_names). A
  // model family that reads the names of Hugging Face checks has_own_names() first. Not called for a checkpoint of a
  // job, which has the stage's own names and values.
  [[nodiscard]] virtual StateMapper map_source_checkpoint(const HuggingFaceDirectory& source, const Module& module);
  // Returns the mapper from the tensors of the folder trainer.model_stage_factory.source_adapters to the adapters of
  // the whole model; only those of the stage are loaded. By default a ConfigError: it is not built.
  [[nodiscard]] virtual StateMapper map_source_adapters(const PeftFolder& source, const Module& module);
  // Returns what Trainer::export_to writes. In a pipeline, all ranks return the mapper of the whole model. By default:
  // all tensors of `module`, which has the stages of this rank, by their names, with adapters merged (tied weights as
  // those of an untied model), and no other file.
  [[nodiscard]] virtual ModelExport prepare_export(const Module& module);
  // Returns the FLOPs of forward and backward for one token, without what activation checkpointing computes again, for
  // the model FLOPs utilization in the log; none: it is not logged.
  [[nodiscard]] virtual std::optional<double> flops_per_token() const;
  // Called once, after the task's register_events and before anything is built.
  virtual void register_events(const DistContext& context, EventBus& events);
  [[nodiscard]] virtual nlohmann::json dump_hparams() const;  // by default an empty object
};

// dump_hparams(), an object, with adapters() as "adapters": what must be equal on all ranks, and is saved.
[[nodiscard]] nlohmann::json hparams_of(const AnyModelProvider& provider);

template <class Types>
class ModelProvider : public AnyModelProvider {
 public:
  // Builds the stage on the meta device, in the dtype that it computes in. Called for each stage of the rank, directly
  // before parallelize_model_stage() of the same stage.
  [[nodiscard]] virtual ModelStage<Types> initialize_model_stage(const DistContext& context,
                                                                 const PipelineStageInfo& stage) = 0;
};

template <class Batch>
class DataProvider {
 public:
  virtual ~DataProvider() = default;
  // total_steps: trainer.schedule.total_steps, if it is set. The provider divides samples over data-parallel ranks.
  [[nodiscard]] virtual std::unique_ptr<PackStream<Batch>> build_pack_stream(
      const DistContext& context, std::optional<std::int64_t> total_steps) = 0;
  // Returns the settings as the user wrote them; see OptimizerProvider.
  [[nodiscard]] virtual nlohmann::json dump_hparams() const { return nullptr; }
};

class OptimizerProvider {
 public:
  virtual ~OptimizerProvider() = default;
  // `trainable`: the tensors that this rank keeps and updates.
  [[nodiscard]] virtual Optimizer build_optimizer(const DistContext& context, const TrainableParameters& trainable) = 0;
  // Returns the settings as the user wrote them; a resumed job warns of those that changed. By default null, which is
  // not compared.
  [[nodiscard]] virtual nlohmann::json dump_hparams() const { return nullptr; }
};

class LearningRateSchedulerProvider {
 public:
  virtual ~LearningRateSchedulerProvider() = default;
  // Called before the model is built.
  [[nodiscard]] virtual LearningRateScheduler build_scheduler(const DistContext& context, std::int64_t total_steps) = 0;
  [[nodiscard]] virtual nlohmann::json dump_hparams() const { return nullptr; }  // see OptimizerProvider
  // A picture for the tracker of the learning rate over the steps of the job, the text of an SVG file; null: none.
  // learning_rate: of the optimiser. Called on the main process.
  [[nodiscard]] virtual std::optional<std::string> draw(double /*learning_rate*/, std::int64_t /*total_steps*/) const {
    return std::nullopt;
  }
};

}  // namespace d9d
