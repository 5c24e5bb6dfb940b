// Gives memory, layouts and values to a model stage that a provider has initialized on the meta device. Training,
// measuring and planning build their stages with it.
//
//   adapters -> master dtype -> parallelize -> materialize -> initial values -> source checkpoint -> magnitudes of DoRA
//   -> source adapters -> detect_non_finite
//
// Example
//   const std::shared_ptr<AnyModelStage> stage = binding.initialize_stage(context, info);
//   const BuiltStage built = build_model_stage(context, config, provider, info, stage->module);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/task/providers.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/peft/inject.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

// Throws StateError, naming the parameter, if a parameter of the provider's module already has storage or was written
// to on the meta device.
void check_late_initialized(const Module& module);

// Throws StateError, naming the parameter, if a parameter has no layout on the job's mesh. Parameters of a job with one
// rank need layouts too, on a mesh whose axes have size 1, so that no code needs a special case for one rank.
void check_layouts(const DistContext& context, const Module& module);

// Creates one random clock for all random layers of the module, with the job's seed and the number of ranks that share
// a microbatch. Returns the clock.
[[nodiscard]] RandomClockPtr share_random_clock(const DistContext& context, Module& module,
                                                const TrainerConfig& config);

// Collective over the job. Fills the module from the configured source_checkpoint: from a Hugging Face folder with the
// mapper that `map` returns for it, or from a checkpoint of a job by the names of the module. Adapters may be missing,
// and are then not reported. An error of one rank is thrown on all ranks.
[[nodiscard]] LoadReport load_source_checkpoint(const DistContext& context, Module& module,
                                                const ModelStageFactoryConfig& config,
                                                const std::function<StateMapper(const HuggingFaceDirectory&)>& map);
// Collective over the job. Fills the adapters of the module, and what is trained beside them, from the configured
// source_adapters. An error of one rank is thrown on all ranks.
void load_source_adapters(const DistContext& context, Module& module, const ModelStageFactoryConfig& config,
                          const std::function<StateMapper(const PeftFolder&)>& map);
// Collective over the job. The main process warns of tensors of the source_checkpoint that no stage uses, and of
// parameters that the source_checkpoint lacks. of_stages: the reports of the stages of this rank.
void warn_of_source_checkpoint(const DistContext& context, const ModelStageFactoryConfig& config,
                               const std::vector<LoadReport>& of_stages);

// What stages are built for.
enum class StagesOf : std::uint8_t {
  kNewJob,
  kResumedJob,  // the job continues from its own checkpoint, which is loaded afterwards
  // The frozen copy of a job's reference (ReferenceWeights): the values of a new job, without master weights, and
  // nothing is trained. The log does not say again what differs in source_checkpoint.
  kFrozenCopy,
};

struct BuiltStage {
  std::optional<LoadReport> loaded;        // of source_checkpoint; none: it was not read
  std::optional<PeftInjection> injection;  // none: the provider has no adapters
};

// Runs the steps listed at the top of this file for one stage. Collective over the job. module: as
// ModelProvider::initialize_model_stage() returned it. Of a resumed job, model_stage_factory.source_checkpoint is read
// only with checkpoint_only_trainable_parameters, for the frozen parameters, which its own checkpoint lacks. On the
// meta device no values are set. Throws ConfigError if the model is one stage and a pattern of adapters matches nothing
// in it.
BuiltStage build_model_stage(const DistContext& context, const TrainerConfig& config, AnyModelProvider& provider,
                             const PipelineStageInfo& stage, const std::shared_ptr<Module>& module,
                             StagesOf purpose = StagesOf::kNewJob);

// Initializes and builds the stages that `placement` gives this rank, in its order, and warns of what does not fit in
// source_checkpoint. Collective over the job. Throws ConfigError if a pattern of adapters matches nothing in any stage.
// initialize: the binding's initialize_stage().
[[nodiscard]] std::vector<std::shared_ptr<AnyModelStage>> build_model_stages(
    const DistContext& context, const TrainerConfig& config, AnyModelProvider& provider,
    const StagePlacement& placement,
    const std::function<std::shared_ptr<AnyModelStage>(const PipelineStageInfo&)>& initialize,
    StagesOf purpose = StagesOf::kNewJob);

}  // namespace d9d
