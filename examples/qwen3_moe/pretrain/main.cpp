// Trains a small Qwen3 mixture-of-experts language model on byte-level text and exports it for Hugging Face
// transformers.
//
//   qwen3_moe_pretrain examples/qwen3_moe/pretrain/pretrain.json [key.path=value ...]
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/huggingface/module_weights.h"
#include "d9d/models/qwen3_moe/huggingface.h"
#include "d9d/models/qwen3_moe/model.h"

#include "examples/common/pretrain.h"

namespace {

using Parameters = d9d::Qwen3MoEParameters;
constexpr auto kHead = d9d::CausalLMHeadConfig{};

class Qwen3MoEProvider : public examples::CausalLMProvider<Parameters> {
 public:
  using CausalLMProvider::CausalLMProvider;

  d9d::ModelStage<examples::LanguageModelTypes> initialize_model_stage(const d9d::DistContext&,
                                                                       const d9d::PipelineStageInfo& stage) override {
    return keep(d9d::make_module<d9d::Qwen3MoEModel>(
        config.model, d9d::DecoderStageOptions{.stage = stage, .enable_checkpointing = config.checkpointing}));
  }

  void load_source_checkpoint(const d9d::DistContext& context, d9d::Module& module,
                              const std::filesystem::path& path) override {
    const d9d::HuggingFaceDirectory directory(path);
    const auto mappings = d9d::qwen3_moe_from_huggingface(config.model, kHead, directory.names());
    for (const std::string& name : d9d::load_weights(module, mappings, directory)) {
      context.log().warning("ignored ", name, " of ", path.string());
    }
  }

  void export_model_stage(const d9d::DistContext& context, const d9d::Module& module,
                          const std::filesystem::path& path) override {
    const auto weights = module.full_state_dict();
    context.main_process_first([&] {
      if (!context.is_main_process()) return;
      d9d::write_huggingface_directory(path, export_config_, d9d::map_tensors(export_mappings_, weights));
    });
  }

 private:
  // Made before training: a model that transformers cannot have is refused now and not hours later.
  const nlohmann::json export_config_ = d9d::qwen3_moe_huggingface_config(config.model, kHead, config.dtype);
  const std::vector<d9d::TensorMapping> export_mappings_ = d9d::qwen3_moe_to_huggingface(config.model, kHead);
};

}  // namespace

int main(int argc, char** argv) {
  return d9d::launch<examples::PretrainConfig<Parameters>>(argc, argv, examples::pretrain<Qwen3MoEProvider, Parameters>,
                                                           d9d::apply_0_16_aliases);
}
