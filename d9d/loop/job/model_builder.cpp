#include "d9d/loop/job/model_builder.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/modules/detect_non_finite.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/peft/adapted_model.h"
#include "d9d/peft/magnitudes.h"

namespace d9d {

void check_late_initialized(const Module& module) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    D9D_CHECK(parameter->local().is_meta(), StateError,
              "[loop::model_stage] expected a model without storage, got values in ", name,
              ". Build it on the meta device, anew for each pipeline stage: leave materialize() and reset_parameters() "
              "to the loop.");
    D9D_CHECK(
        parameter->local()._version() == 0, StateError,
        "[loop::model_stage] expected parameters that nothing has written before they have memory, got writes to ",
        name, ", which are lost. Say its values with ParameterSpec::init, or write them in after_reset().");
  }
}

void check_layouts(const DistContext& context, const Module& module) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    D9D_CHECK(!parameter->mesh().axes().empty(), StateError,
              "[loop::model_stage] expected a layout over the mesh of the ", context.world_size(),
              " ranks for every parameter, got none for ", name,
              ". Give it one in ModelProvider::parallelize_model_stage.");
  }
}

namespace {

// Adapters begin with their initial values where the checkpoint is of the model without them.
std::string may_be_missing(const Module& module, const ModelStageFactoryConfig& config) {
  const std::string by_user = config.source_may_lack.value_or("");
  if (adapter_parameters(module).empty()) return by_user;
  return by_user.empty() ? kAdapterParameters : cat("(?:", by_user, ")|", kAdapterParameters);
}

// The error of a pattern that no stage of any rank matches.
void check_patterns_of_all(const DistContext& context, const std::vector<PeftInjection>& of_stages) {
  nlohmann::json own = nlohmann::json::array();
  for (const PeftInjection& stage : of_stages) own.push_back({stage.unmatched, stage.linears});
  std::vector<PeftInjection> all;
  for (const nlohmann::json& of_rank : all_gather_object(own, context.mesh(MeshDomain::kRegular).slice({"pp"}))) {
    for (const nlohmann::json& stage : of_rank) all.push_back({.unmatched = stage[0], .linears = stage[1]});
  }
  check_patterns(all);
}

}  // namespace

LoadReport load_source_checkpoint(const DistContext& context, Module& module, const ModelStageFactoryConfig& config,
                                  const std::function<StateMapper(const HuggingFaceDirectory&)>& map) {
  const std::filesystem::path& folder = config.source_checkpoint.value();
  LoadReport report;
  agreed(context.mesh(MeshDomain::kBatch), [&] {
    with_error_place("in model_stage_factory, source_checkpoint and source_may_lack", [&] {
      const LoadOptions options{.may_be_missing = may_be_missing(module, config)};
      if (const auto saved = checkpoint_at(folder)) {
        if (context.is_main_process()) {
          context.log().info("begins with the weights of ", saved->folder().string(),
                             ", by the names that a job saves: map_source_checkpoint() is not called");
        }
        report = load_saved_model(module, *saved, options);
      } else {
        const HuggingFaceDirectory source(folder);
        report = load_model_state(module, map(source), tensors_of(source), options);
      }
    });
  });
  const std::set<std::string> adapters = adapter_parameters(module);
  std::erase_if(report.missing, [&](const std::string& name) { return adapters.contains(name); });
  return report;
}

namespace {

// Says what is read, and warns if the adapters belong to another model than the job's, as far as names say.
void tell_source(const Logger& log, const PeftFolder& source, const std::optional<std::filesystem::path>& checkpoint) {
  log.info("reads adapters of ", source.path());
  const auto last = [](const std::filesystem::path& path) {
    return path.has_filename() ? path.filename() : path.parent_path().filename();
  };
  if (!source.base() || !checkpoint || last(*source.base()) == last(*checkpoint)) return;
  log.warning("the adapters of ", source.path(), " were trained on ", *source.base(),
              ", and trainer.model_stage_factory.source_checkpoint is ", checkpoint->string(),
              ". Make sure that they are the same model");
}

}  // namespace

void load_source_adapters(const DistContext& context, Module& module, const ModelStageFactoryConfig& config,
                          const std::function<StateMapper(const PeftFolder&)>& map) {
  agreed(context.mesh(MeshDomain::kBatch), [&] {
    const std::filesystem::path& folder = config.source_adapters.value();
    with_error_place(cat("in trainer.model_stage_factory.source_adapters = ", folder.string()), [&] {
      const PeftFolder source(folder);
      if (context.is_main_process()) tell_source(context.log(), source, config.source_checkpoint);
      (void)load_model_state(module, map(source), source.tensors(), {.may_be_missing = ".*"});
    });
  });
}

void warn_of_source_checkpoint(const DistContext& context, const ModelStageFactoryConfig& config,
                               const std::vector<LoadReport>& of_stages) {
  nlohmann::json own = nlohmann::json::array();
  for (const LoadReport& stage : of_stages) own.push_back({stage.unused, stage.missing});
  const auto all = all_gather_object(own, context.mesh(MeshDomain::kRegular).slice({"pp"}));
  if (!context.is_main_process()) return;
  const std::string folder = config.source_checkpoint.value().string();
  if (is_huggingface_directory(folder)) {
    if (const auto index = ignored_index(folder)) {
      context.log().warning("reads model.safetensors of ", folder, ", and nothing of the shards in ", *index,
                            " beside it. Remove what is old");
    }
    if (HuggingFaceDirectory(folder).has_untied_head()) {
      context.log().warning("config.json of ", folder,
                            " says tie_word_embeddings, and its lm_head.weight is not its embedding: they train apart, "
                            "as in transformers");
    }
  }
  std::map<std::string, std::size_t> num_unused;  // number of stages that do not use the tensor
  std::set<std::string> missing;
  std::size_t num_stages = 0;
  for (const nlohmann::json& of_rank : all) {
    for (const nlohmann::json& stage : of_rank) {
      ++num_stages;
      for (const nlohmann::json& name : stage[0]) ++num_unused[name.get<std::string>()];
      for (const nlohmann::json& name : stage[1]) missing.insert(name.get<std::string>());
    }
  }
  for (const auto& [name, count] : num_unused) {
    if (count == num_stages) context.log().warning("ignored ", name, " of ", folder);
  }
  for (const std::string& name : missing) {
    context.log().warning("initial values stay in ", name, ", which ", folder, " lacks");
  }
}

RandomClockPtr share_random_clock(const DistContext& context, Module& module, const TrainerConfig& config) {
  const auto clock = std::make_shared<RandomClock>();
  clock->base_seed = static_cast<std::uint64_t>(config.determinism.base_seed);
  clock->num_ranks = context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}).num_ranks();
  module.set_random_clock(clock);
  return clock;
}

BuiltStage build_model_stage(const DistContext& context, const TrainerConfig& config, AnyModelProvider& provider,
                             const PipelineStageInfo& stage, const std::shared_ptr<Module>& shared, StagesOf purpose) {
  Module& module = *shared;
  const bool resumes = purpose == StagesOf::kResumedJob, is_frozen = purpose == StagesOf::kFrozenCopy;
  check_late_initialized(module);
  BuiltStage built;
  // Before the master dtype and the layout, which adapters get as other parameters do.
  if (const auto method = provider.adapters()) {
    built.injection = inject_peft_into_stage(*method, module);
    if (stage.num_stages == 1) check_patterns({*built.injection});
  }
  if (is_frozen) module.set_requires_grad(false);
  const auto& master_dtype = config.model_stage_factory.master_dtype;
  if (master_dtype && !is_frozen) keep_parameters_in(shared, to_scalar_type(*master_dtype));
  provider.parallelize_model_stage(context, stage, module);
  check_layouts(context, module);
  module.materialize(context.device());
  if (context.device().is_meta()) return built;
  module.reset_parameters(static_cast<std::uint64_t>(config.determinism.base_seed));
  if (const auto& checkpoint = config.model_stage_factory.source_checkpoint;
      checkpoint && (!resumes || config.model_stage_factory.checkpoint_only_trainable_parameters)) {
    built.loaded = load_source_checkpoint(
        context, module, config.model_stage_factory,
        [&](const HuggingFaceDirectory& source) { return provider.map_source_checkpoint(source, module); });
  }
  if (!resumes) {
    std::set<std::string> loaded;
    if (built.loaded) loaded.insert(built.loaded->loaded.begin(), built.loaded->loaded.end());
    begin_magnitudes(module, loaded);
  }
  if (config.model_stage_factory.source_adapters && !resumes) {
    load_source_adapters(context, module, config.model_stage_factory,
                         [&](const PeftFolder& source) { return provider.map_source_adapters(source, module); });
  }
  module.check_initialized();
  if (config.detect_non_finite) detect_non_finite(module);
  return built;
}

std::vector<std::shared_ptr<AnyModelStage>> build_model_stages(
    const DistContext& context, const TrainerConfig& config, AnyModelProvider& provider,
    const StagePlacement& placement,
    const std::function<std::shared_ptr<AnyModelStage>(const PipelineStageInfo&)>& initialize, StagesOf purpose) {
  std::vector<std::shared_ptr<AnyModelStage>> stages;
  std::vector<LoadReport> loaded;
  std::vector<PeftInjection> injections;
  for (const StageIndex index : placement.stages_of(context.mesh(MeshDomain::kRegular).axis_coordinate("pp"))) {
    const PipelineStageInfo info{.num_stages = placement.num_stages(), .current_stage = index.value};
    stages.push_back(initialize(info));
    const std::shared_ptr<Module>& module = stages.back()->module;
    check_equal_model(context, *module);
    BuiltStage built = build_model_stage(context, config, provider, info, module, purpose);
    if (built.loaded) loaded.push_back(std::move(*built.loaded));
    if (built.injection) injections.push_back(std::move(*built.injection));
  }
  if (!injections.empty()) check_patterns_of_all(context, injections);
  if (!loaded.empty() && purpose != StagesOf::kFrozenCopy) {
    warn_of_source_checkpoint(context, config.model_stage_factory, loaded);
    if (context.is_main_process() && purpose == StagesOf::kNewJob) {
      const auto saved = checkpoint_at(*config.model_stage_factory.source_checkpoint);
      if (saved) warn_of_other_adapters(context, *saved, hparams_of(provider));
    }
  }
  return stages;
}

}  // namespace d9d
