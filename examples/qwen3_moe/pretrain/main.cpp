// Trains a small Qwen3 mixture-of-experts language model on byte-level text and exports it for Hugging Face
// transformers.
//
//   qwen3_moe_pretrain examples/qwen3_moe/pretrain/pretrain.json [key.path=value ...]
#include <iostream>

#include "d9d/core/launch/launch.h"
#include "d9d/loop/auto/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/modules/models/decoder/generate.h"
#include "d9d/modules/models/qwen3_moe/huggingface.h"
#include "d9d/modules/models/qwen3_moe/model.h"

#include "examples/common/language_model.h"

namespace {

struct ModelProviderConfig {
  d9d::Qwen3MoEParameters model;
  bool checkpointing = false;               // activation checkpointing of every layer
  d9d::Dtype dtype = d9d::Dtype::kFloat32;  // of parameters and activations

  static constexpr auto fields() {
    using Config = ModelProviderConfig;
    return d9d::record<Config>(d9d::required("model", &Config::model),
                               d9d::required("checkpointing", &Config::checkpointing),
                               d9d::defaulted("dtype", &Config::dtype));
  }
};

struct PretrainConfig {
  d9d::LaunchConfig launch;
  d9d::DeviceMeshParameters mesh;
  d9d::DataConfig data;
  ModelProviderConfig model_provider;
  d9d::TrainerConfig trainer;
  d9d::OptimizerConfig optimizer;
  d9d::LRSchedulerConfig lr_scheduler;
  std::filesystem::path export_to;

  static constexpr auto fields() {
    using Config = PretrainConfig;
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
        d9d::required("data", &Config::data), d9d::required("model_provider", &Config::model_provider),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler), d9d::required("export_to", &Config::export_to));
  }
};

using examples::LanguageModelTypes;

class Qwen3MoEProvider : public d9d::ModelProvider<LanguageModelTypes> {
 public:
  explicit Qwen3MoEProvider(const ModelProviderConfig& config) : config_(config) {}

  d9d::ModelStage<LanguageModelTypes> initialize_model_stage(const d9d::DistContext&,
                                                             const d9d::PipelineStageInfo& stage) override {
    const auto backbone = d9d::make_module<d9d::Qwen3MoEModel>(
        config_.model, d9d::DecoderStageOptions{.stage = stage, .enable_checkpointing = config_.checkpointing});
    model_ = d9d::make_decoder_for_causal_lm(backbone);
    model_->to(d9d::to_scalar_type(config_.dtype));
    return d9d::as_model_stage<LanguageModelTypes>(model_);
  }
  void load_source_checkpoint(const d9d::DistContext& context, d9d::Module& module,
                              const std::filesystem::path& directory) override {
    d9d::load_qwen3_moe_from_huggingface(module, config_.model, directory, context.log());
  }
  void export_model_stage(const d9d::DistContext&, const d9d::Module& module,
                          const std::filesystem::path& directory) override {
    d9d::export_qwen3_moe_to_huggingface(module, config_.model, directory);
  }
  nlohmann::json dump_hparams() const override { return d9d::to_json(config_); }

  const d9d::ModulePtr<d9d::DecoderForCausalLM>& model() const { return model_; }

 private:
  ModelProviderConfig config_;
  d9d::ModulePtr<d9d::DecoderForCausalLM> model_;
};

void pretrain(const PretrainConfig& config, d9d::DistContext& context) {
  d9d::check_export_target(config.export_to);
  examples::LanguageModelTask task;
  Qwen3MoEProvider model(config.model_provider);
  examples::TokenDataProvider data(config.data, d9d::vocabulary_size(config.model_provider.model),
                                   config.trainer.determinism.base_seed);
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);

  d9d::Trainer<LanguageModelTypes> trainer(
      context, config.trainer,
      {.task = task, .model = model, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;

  trainer.export_to(config.export_to);
  context.log().info("exported to ", config.export_to.string());
  const std::string prompt = "#include <";
  std::cout << "--- sample ---\n"
            << prompt << d9d::generate_bytes(model.model(), prompt, {.num_tokens = 200, .temperature = 0.7}) << "\n";
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<PretrainConfig>(argc, argv, pretrain); }
