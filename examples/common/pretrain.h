// The configuration and the course of a pretraining job, whatever its model.
#pragma once

#include <filesystem>
#include <iostream>
#include <string>

#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/launch/launch.h"
#include "d9d/loop/auto/auto_providers.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/decoder/parallelize.h"

#include "examples/common/language_model.h"

namespace examples {

template <class Parameters>
struct ModelProviderConfig {
  Parameters model = {};
  bool checkpointing = false;               // activation checkpointing of every layer
  d9d::Dtype dtype = d9d::Dtype::kFloat32;  // of parameters and activations
  d9d::FsdpConfig fsdp = {};                // where mesh.data_parallel_shard or context_parallel_shard cut parameters

  static constexpr auto fields() {
    using Config = ModelProviderConfig;
    return d9d::record<Config>(d9d::required("model", &Config::model),
                               d9d::required("checkpointing", &Config::checkpointing),
                               d9d::defaulted("dtype", &Config::dtype), d9d::defaulted("fsdp", &Config::fsdp));
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

  static constexpr auto fields() {
    using Config = PretrainConfig;
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
        d9d::required("data", &Config::data), d9d::required("model_provider", &Config::model_provider),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler), d9d::required("export_to", &Config::export_to));
  }
};

// A model provider that remembers the model it built, to sample from it.
template <class Parameters>
class CausalLMProvider : public d9d::ModelProvider<LanguageModelTypes> {
 public:
  explicit CausalLMProvider(const ModelProviderConfig<Parameters>& provider_config) : config(provider_config) {}

  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    d9d::parallelize_decoder(context, *backbone_, {model->head.shared()}, config.fsdp);
  }

  nlohmann::json dump_hparams() const override { return d9d::write_record(config); }

  const ModelProviderConfig<Parameters> config;
  d9d::ModulePtr<d9d::DecoderForCausalLM> model;

 protected:
  d9d::ModelStage<LanguageModelTypes> keep(const d9d::ModulePtr<d9d::PreNormDecoder>& backbone) {
    backbone_ = backbone;
    model = d9d::make_decoder_for_causal_lm(backbone);
    model->to(d9d::to_scalar_type(config.dtype));
    return d9d::as_model_stage<LanguageModelTypes>(model);
  }

 private:
  d9d::ModulePtr<d9d::PreNormDecoder> backbone_;
};

// Trains, exports, and prints a sample of what the model writes.
template <class Provider, class Parameters>
void pretrain(const PretrainConfig<Parameters>& config, d9d::DistContext& context) {
  d9d::check_huggingface_target(config.export_to);
  LanguageModelTask task(context);
  Provider model(config.model_provider);
  const Parameters& sizes = config.model_provider.model;
  const d9d::VocabularySplits vocabulary{.sizes = sizes.split_vocab_size, .order = sizes.split_vocab_order};
  TokenDataProvider data(config.data, {.vocabulary_size = vocabulary.total(), .max_positions = sizes.max_position_ids},
                         config.trainer.determinism.base_seed);
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);

  d9d::Trainer<LanguageModelTypes> trainer(
      context, config.trainer,
      {.task = task, .model = model, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  trainer.export_to(config.export_to);
  const std::string prompt = "#include <";
  const d9d::DeviceMesh sequence_ranks = context.mesh(d9d::MeshDomain::kBatch).slice({"cp", "tp"});
  const std::string sample = d9d::generate_bytes(
      model.model, prompt, {.num_tokens = 200, .temperature = 0.7, .sequence_ranks = sequence_ranks});
  if (!context.is_main_process()) return;
  context.log().info("exported to ", config.export_to.string());
  std::cout << "--- a sample ---\n" << prompt << sample << '\n';
}

}  // namespace examples
