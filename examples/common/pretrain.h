// The configuration and the course of a pretraining job, whatever the family of its model. A family names
//
//   Parameters                               the record of its sizes
//   Model                                    the backbone, made from Parameters and DecoderStageOptions
//   parameters_from_huggingface, from_huggingface, to_huggingface, huggingface_config
//                                            the functions of its huggingface.h
#pragma once

#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/launch/launch.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/language_model/model_tokenizer.h"
#include "d9d/loop/language_model/staged_decoder.h"
#include "d9d/loop/language_model/text_samples.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/huggingface/model_sizes.h"
#include "d9d/models/legacy_names.h"
#include "d9d/modules/initial_values.h"

namespace examples {

template <class Parameters>
struct ModelProviderConfig {
  d9d::ModelSizes<Parameters> model = {};  // or "from_checkpoint"
  d9d::CausalLMHeadConfig head = {};
  bool checkpointing = false;                    // activation checkpointing of every layer
  d9d::Dtype dtype = d9d::Dtype::kFloat32;       // of parameters and activations
  std::optional<double> initializer_range = {};  // standard deviation of all initial weights; null: a layer's own
  d9d::FsdpConfig fsdp = {};  // where mesh.data_parallel_shard or context_parallel_shard cut parameters

  static constexpr auto fields() {
    using Config = ModelProviderConfig;
    return d9d::record<Config>(d9d::required("model", &Config::model), d9d::defaulted("head", &Config::head),
                               d9d::required("checkpointing", &Config::checkpointing),
                               d9d::defaulted("dtype", &Config::dtype),
                               d9d::defaulted("initializer_range", &Config::initializer_range, d9d::at_least(0)),
                               d9d::defaulted("fsdp", &Config::fsdp));
  }
};

template <class Parameters>
struct PretrainConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  d9d::DataConfig data = {};
  ModelProviderConfig<Parameters> model_provider = {};
  d9d::TrainerConfig trainer = {};
  d9d::OptimizerConfig optimizer = {};
  d9d::LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path export_to = {};
  std::optional<d9d::TextSamplesConfig> sample = {};  // what the trained model writes

  static constexpr auto fields() {
    using Config = PretrainConfig;
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
        d9d::required("data", &Config::data), d9d::required("model_provider", &Config::model_provider),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler), d9d::required("export_to", &Config::export_to),
        d9d::defaulted("sample", &Config::sample));
  }
};

// Builds, loads and exports a causal language model of the family.
template <class Family>
class CausalLMProvider : public d9d::ModelProvider<d9d::LanguageModelTypes> {
 public:
  using Parameters = typename Family::Parameters;

  // stored: the dtype in which parameters are kept and exported. `files`: what exports have beside weights and
  // config.json.
  CausalLMProvider(const ModelProviderConfig<Parameters>& provider_config, Parameters resolved_sizes, d9d::Dtype stored,
                   std::map<std::string, std::string> files = {})
      : config(provider_config),
        sizes(std::move(resolved_sizes)),
        stored_dtype(stored),
        export_{.mapper = Family::to_huggingface(sizes, kHead), .files = std::move(files)} {
    export_.files["config.json"] = Family::huggingface_config(sizes, kHead, stored_dtype).dump(2) + "\n";
  }

  d9d::ModelStage<d9d::LanguageModelTypes> initialize_model_stage(const d9d::DistContext&,
                                                                  const d9d::PipelineStageInfo& stage) override {
    backbone_ = d9d::make_module<typename Family::Model>(
        sizes, d9d::DecoderStageOptions{.stage = stage, .enable_checkpointing = config.checkpointing});
    model_ = d9d::make_decoder_for_causal_lm(backbone_, config.head);
    model_->to(d9d::to_scalar_type(config.dtype));
    if (config.initializer_range) d9d::set_normal_init(*model_, *config.initializer_range);
    return d9d::as_model_stage<d9d::LanguageModelTypes>(model_);
  }

  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    d9d::parallelize_decoder(context, *backbone_, {model_->head.shared()}, config.fsdp);
  }

  d9d::StateMapper map_source_checkpoint(const d9d::HuggingFaceDirectory& source, const d9d::Module& stage) override {
    const std::vector<std::string> names = source.names();
    if (d9d::has_own_names(stage, names)) return d9d::own_names(stage, names);  // an export in them
    return Family::from_huggingface(sizes, kHead, names);
  }

  d9d::ModelExport prepare_export(const d9d::Module&) override { return export_; }

  nlohmann::json dump_hparams() const override {
    nlohmann::json hparams = d9d::write_record(config);
    hparams["model"] = d9d::write_record(sizes);  // also where the configuration says "from_checkpoint"
    return hparams;
  }

  const ModelProviderConfig<Parameters> config;
  const Parameters sizes;
  const d9d::Dtype stored_dtype;

 private:
  static constexpr auto kHead = d9d::CausalLMHeadConfig{};

  d9d::ModulePtr<d9d::PreNormDecoder> backbone_;  // of the stage that was built last
  d9d::ModulePtr<d9d::DecoderForCausalLM> model_;
  d9d::ModelExport export_;  // made before training: a model that transformers cannot have is refused at once
};

// What the model is built with. Of a checkpoint of a job of this program sizes are what
// CausalLMProvider::dump_hparams() wrote into it.
template <class Family>
typename Family::Parameters model_sizes(const PretrainConfig<typename Family::Parameters>& config) {
  using Parameters = typename Family::Parameters;
  const d9d::ModelSizes<Parameters>& sizes = config.model_provider.model;
  const auto& source = config.trainer.model_stage_factory.source_checkpoint;
  const d9d::ConfigPath path{.keys = "model_provider.model"};
  const auto saved = source ? d9d::checkpoint_at(*source) : std::nullopt;
  if (!saved) return d9d::resolve_model_sizes(sizes, source, Family::parameters_from_huggingface, path);
  const std::filesystem::path file = saved->folder() / "manifest.json";
  const nlohmann::ordered_json hparams = d9d::value_of(*saved, "hparams").at("model");
  if (sizes.written && !hparams.contains("model")) return *sizes.written;  // of a program that does not note them
  D9D_CHECK(hparams.contains("model"), d9d::ConfigError, path, "expected the sizes of a model in ", file.string(),
            ", got none. Write them here.");
  const auto published = d9d::parse_record<Parameters>(hparams.at("model"),
                                                       {.keys = "values.hparams.model.model", .source = file.string()});
  return d9d::resolve_model_sizes(sizes, published, file, path);
}

// Trains, exports, and prints samples of what the model writes.
template <class Family>
void pretrain(const PretrainConfig<typename Family::Parameters>& config, d9d::DistContext& context) {
  const auto& source = config.trainer.model_stage_factory.source_checkpoint;
  const auto sizes = model_sizes<Family>(config);
  if (source) d9d::check_tokenizer(context, config.data, *source);
  auto files = d9d::tokenizer_files(context, config.data,
                                    {.source_checkpoint = source,
                                     .tokenizer = config.sample ? config.sample->tokenizer : std::nullopt,
                                     .max_positions = sizes.max_position_ids});
  const auto export_lock = d9d::prepare_export(context, config.export_to, files, config.trainer);
  constexpr bool kHasExperts = requires(const typename Family::Parameters& of) { of.layer.num_experts; };
  d9d::LanguageModelTask task(context, {.tells_padding = kHasExperts});
  CausalLMProvider<Family> model(config.model_provider, sizes,
                                 config.trainer.model_stage_factory.master_dtype.value_or(config.model_provider.dtype),
                                 std::move(files));
  const d9d::VocabularySplits vocabulary{.sizes = sizes.split_vocab_size, .order = sizes.split_vocab_order};
  const d9d::TokenLimits limits{.vocabulary_size = vocabulary.total(), .max_positions = sizes.max_position_ids};
  std::optional<d9d::TextSamples> samples;  // made before training: what is wrong with it is refused now
  if (config.sample) samples.emplace(*config.sample, config.data, limits);
  auto data = d9d::token_data_provider(config.data, limits, config.trainer.determinism.base_seed);
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);

  d9d::Trainer<d9d::LanguageModelTypes> trainer(
      context, config.trainer,
      {.task = task, .model = model, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  trainer.export_to(config.export_to);
  if (context.is_main_process()) context.log().info("exported to ", config.export_to.string());
  if (!samples) return;
  const auto decoder = d9d::staged_decoder(context, trainer.placement(), trainer.stages(),
                                           {.method = config.trainer.pipelining.messages});
  samples->write(context, *decoder, std::cout);
}

// The program of a family: reads the configuration that the command line names, and trains.
template <class Family>
int run_pretraining(int argc, char** argv) {
  return d9d::launch<PretrainConfig<typename Family::Parameters>>(argc, argv, pretrain<Family>,
                                                                  d9d::apply_0_16_aliases);
}

}  // namespace examples
