// Builds, loads and exports a causal language model of any decoder family, for jobs that pretrain or fine-tune it.
//
// Example
//   const auto sizes = causal_lm_sizes(kQwen3Dense, config.model_provider, source_checkpoint);
//   CausalLMProvider model(kQwen3Dense, config.model_provider, sizes, /*files=*/{}, source_checkpoint);
//   Trainer<LanguageModelTypes> trainer(context, config.trainer, {.task = task, .model = model, ...});
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/task/providers.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/huggingface/model_sizes.h"
#include "d9d/models/legacy_names.h"
#include "d9d/models/model_family.h"
#include "d9d/modules/initial_values.h"
#include "d9d/peft/export_config.h"
#include "d9d/peft/inject.h"
#include "d9d/peft/peft_import.h"

namespace d9d {

template <class Parameters>
struct CausalLMProviderConfig {
  ModelSizes<Parameters> model = {};             // sizes of the model, or "from_checkpoint"
  CausalLMHeadConfig head = {};                  // how the loss is computed
  LayerCheckpointing checkpointing = {};         // of activations
  Dtype dtype = Dtype::kFloat32;                 // of parameters and activations
  std::optional<double> initializer_range = {};  // standard deviation of initial weights; null: each layer's default
  FsdpConfig fsdp = {};                          // for meshes with data_parallel_shard or context_parallel_shard
  TensorParallelConfig tensor_parallel = {};     // for meshes with tensor_parallel
  ContextParallelConfig context_parallel = {};   // for meshes with context_parallel_shard or context_parallel_replicate
  std::optional<PeftConfig> adapters = {};       // what is trained, and with which adapters; null: all parameters
  ExportConfig exported = {};                    // what exports contain

  static constexpr auto fields() {
    using Config = CausalLMProviderConfig;
    return record<Config>(required("model", &Config::model), defaulted("head", &Config::head),
                          required("checkpointing", &Config::checkpointing), defaulted("dtype", &Config::dtype),
                          defaulted("initializer_range", &Config::initializer_range, at_least(0)),
                          defaulted("fsdp", &Config::fsdp), defaulted("tensor_parallel", &Config::tensor_parallel),
                          defaulted("context_parallel", &Config::context_parallel),
                          defaulted("adapters", &Config::adapters), defaulted("export", &Config::exported));
  }
};

// Builds each pipeline stage as a DecoderForCausalLM, and distributes its parameters over ranks with
// parallelize_decoder(). Exports use the tensor names of Hugging Face. Types: of the task, with a decoder's inputs and
// outputs.
template <class Parameters, class Types = LanguageModelTypes>
class CausalLMProvider : public ModelProvider<Types> {
 public:
  // model_family: borrowed. files: further files of exports, by name; config.json is added. source_checkpoint: of the
  // job, which exported adapters name. Throws ConfigError for sizes that the family's Hugging Face model cannot have,
  // and as inject_peft() and export_of_adapted().
  CausalLMProvider(const ModelFamily<Parameters>& model_family,
                   const CausalLMProviderConfig<Parameters>& provider_config, Parameters resolved_sizes,
                   std::map<std::string, std::string> files = {},
                   const std::optional<std::filesystem::path>& source_checkpoint = {})
      : family(model_family),
        config(provider_config),
        sizes(std::move(resolved_sizes)),
        exported_dtype(config.exported.dtype.value_or(config.dtype)),
        adapted_(config.adapters ? std::optional(adapted_model(*config.adapters, *whole_model())) : std::nullopt),
        plain_(plain_export(std::move(files))) {
    D9D_CHECK(adapted_ || config.exported.adapters == ExportedAdapters::kMerged, ConfigError,
              "[loop::language_model] expected model_provider.adapters with model_provider.export.adapters = peft, got "
              "none: there is nothing to export. Leave export.adapters out.");
    if (!adapted_) return;
    std::optional<std::string> base;  // a folder that others can read
    if (source_checkpoint && !checkpoint_at(*source_checkpoint)) base = source_checkpoint->string();
    adapted_export_ = export_of_adapted(config.exported.adapters, *adapted_, plain_, exported_dtype, base);
  }

  ModelStage<Types> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    backbone_ = family.build(sizes, {.stage = stage, .checkpointing = config.checkpointing});
    model_ = make_decoder_for_causal_lm(backbone_, config.head);
    model_->to(to_scalar_type(config.dtype));
    if (config.initializer_range) set_normal_init(*model_, *config.initializer_range);
    return as_model_stage<Types>(model_);
  }

  std::optional<PeftConfig> adapters() const override { return config.adapters; }

  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    parallelize_decoder(context, *backbone_, {model_->head.shared()}, config.fsdp, config.tensor_parallel,
                        config.context_parallel);
  }

  StateMapper map_source_checkpoint(const HuggingFaceDirectory& source, const Module& stage) override {
    const std::vector<std::string> names = source.names();
    if (has_own_names(stage, names)) return own_names(stage, names);  // a folder with the stage's own names
    return family.from_huggingface(sizes, kHead, names);
  }

  StateMapper map_source_adapters(const PeftFolder& source, const Module&) override {
    D9D_CHECK(adapted_, ConfigError, "[loop::language_model] expected model_provider.adapters for source_adapters = '",
              source.path(), "', got none. Say which modules have them.");
    return from_peft(*adapted_, plain_.mapper, source);
  }

  // A model whose adapters merge_peft() has merged is exported as it is. Throws ConfigError if its adapters are wanted.
  ModelExport prepare_export(const Module& module) override {
    if (adapted_ && !is_merged(*adapted_, module)) return *adapted_export_;
    D9D_CHECK(!adapted_ || config.exported.adapters == ExportedAdapters::kMerged, ConfigError,
              "[loop::language_model] expected a model with adapters, which model_provider.export.adapters = peft "
              "exports, got one into which they are merged. Call MergedPeft::unmerge() before.");
    ModelExport exported = plain_;
    exported.mapper = mapper::in_dtype(plain_.mapper, to_scalar_type(exported_dtype));
    return exported;
  }

  std::optional<double> flops_per_token() const override {
    const auto whole = whole_model();
    if (config.adapters) (void)inject_peft(*config.adapters, *whole);
    double flops = 0;
    whole->for_each_module(
        [&](const std::string&, Module& module) { flops += module.training_flops(sequence_length.value_or(0)); });
    return flops;
  }

  nlohmann::json dump_hparams() const override {
    nlohmann::json hparams = write_record(config);
    hparams["family"] = family.name;         // d9d_convert exports checkpoints by it
    hparams["model"] = write_record(sizes);  // also where the configuration says "from_checkpoint"
    return hparams;
  }

  const ModelFamily<Parameters>& family;
  const CausalLMProviderConfig<Parameters> config;
  const Parameters sizes;
  const Dtype exported_dtype;
  // Positions of a sequence, for flops_per_token(); none: attention is not counted.
  std::optional<std::int64_t> sequence_length = {};

 private:
  static constexpr auto kHead = CausalLMHeadConfig{};

  // Without memory and adapters.
  [[nodiscard]] ModulePtr<DecoderForCausalLM> whole_model() const {
    return make_decoder_for_causal_lm(family.build(sizes, {}), config.head);
  }

  // The export is of an untied model if an adapter of the embedding or the head makes it one.
  [[nodiscard]] ModelExport plain_export(std::map<std::string, std::string> files) const {
    Parameters exported = sizes;
    if (adapted_ && !adapted_->untied.empty()) exported.tie_word_embeddings = false;
    files["config.json"] = family.huggingface_config(exported, kHead, exported_dtype).dump(2) + "\n";
    return {.mapper = family.to_huggingface(exported, kHead, ExpertsFormat::kModuleList), .files = std::move(files)};
  }

  ModulePtr<PreNormDecoder> backbone_;  // the backbone of the stage that was built last
  ModulePtr<DecoderForCausalLM> model_;
  const std::optional<AdaptedModel> adapted_;
  const ModelExport plain_;  // of the model without adapters, in the dtypes that it has
  std::optional<ModelExport> adapted_export_;
};

// Local. Returns the sizes that the model is built with: those of the configuration, or those of source_checkpoint if
// the configuration says "from_checkpoint". A checkpoint of a job contains the sizes as
// CausalLMProvider::dump_hparams() returned them. Throws ConfigError if the configuration has sizes that differ from
// the checkpoint's.
template <class Parameters>
[[nodiscard]] Parameters causal_lm_sizes(const ModelFamily<Parameters>& family,
                                         const CausalLMProviderConfig<Parameters>& config,
                                         const std::optional<std::filesystem::path>& source_checkpoint) {
  const ConfigPath path{.keys = "model_provider.model"};
  const auto saved = source_checkpoint ? checkpoint_at(*source_checkpoint) : std::nullopt;
  if (!saved) {
    return resolve_model_sizes(config.model, source_checkpoint, family.parameters_from_huggingface, path);
  }
  const std::filesystem::path file = saved->folder() / "manifest.json";
  const nlohmann::ordered_json hparams = value_of(*saved, "hparams").at("model");
  // The job may have had a custom provider, whose dump_hparams() does not contain sizes.
  if (config.model.written && !hparams.contains("model")) return *config.model.written;
  D9D_CHECK(hparams.contains("model"), ConfigError, path, "expected the sizes of a model in ", file.string(),
            ", got none. Write them here.");
  const auto published =
      parse_record<Parameters>(hparams.at("model"), {.keys = "values.hparams.model.model", .source = file.string()});
  return resolve_model_sizes(config.model, published, file, path);
}

}  // namespace d9d
