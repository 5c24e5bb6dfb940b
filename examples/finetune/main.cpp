// Fine-tunes a published model, or an export of ours, on conversations: all of its weights, or adapters (LoRA). Its
// family is that of the folder's config.json.
//
//   finetune examples/finetune/lora.json [key.path=value ...]
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/families.h"

#include "examples/common/pretrain.h"

namespace {

// The folder that the command line's configuration names as trainer.model_stage_factory.source_checkpoint.
std::string source_of(const d9d::ConfigCommand& command) {
  const d9d::Json config = d9d::read_config(command, {});
  const d9d::Json::json_pointer key("/trainer/model_stage_factory/source_checkpoint");
  D9D_CHECK(
      config.contains(key) && config[key].is_string(), d9d::ConfigError, "[config] ", command.file.string(),
      ": trainer.model_stage_factory.source_checkpoint: expected the folder of the model to fine-tune, got none. Name "
      "one that has a config.json.");
  return config[key];
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  const int of_errors = d9d::run_reporting_errors([&] {
    const d9d::ConfigCommand command = d9d::parse_config_command(argc, argv);
    if (command.wants_help || command.wants_schema) {
      exit_code = examples::run_pretraining(d9d::kQwen3Dense, argc, argv);
      return;
    }
    const d9d::HuggingFaceDirectory source(source_of(command));
    d9d::visit_family_of(source.read_config(),
                         [&](const auto& family) { exit_code = examples::run_pretraining(family, argc, argv); });
  });
  return of_errors != 0 ? of_errors : exit_code;
}
