// Runs a program for the family of the model that its configuration begins with.
//
// Example
//   int main(int argc, char** argv) {
//     return examples::run_for_source_family(argc, argv, [&](const auto& family) { return run(family, argc, argv); });
//   }
#pragma once

#include <string>

#include "d9d/base/check.h"
#include "d9d/base/config/load_config.h"
#include "d9d/core/launch/launch.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/families.h"

namespace examples {

// The folder that the command line's configuration names as trainer.model_stage_factory.source_checkpoint.
inline std::string source_of(const d9d::ConfigCommand& command) {
  const d9d::Json config = d9d::read_config(command, {});
  const d9d::Json::json_pointer key("/trainer/model_stage_factory/source_checkpoint");
  D9D_CHECK(
      config.contains(key) && config[key].is_string(), d9d::ConfigError, "[config] ", command.file.string(),
      ": trainer.model_stage_factory.source_checkpoint: expected the folder of the model to fine-tune, got none. Name "
      "one that has a config.json.");
  return config[key];
}

// Returns the exit code of run(family). The family is that of the source checkpoint's config.json; for --help and
// --schema, which name none, it is Qwen3.
template <class Run>
int run_for_source_family(int argc, char** argv, const Run& run) {
  int exit_code = 0;
  const int of_errors = d9d::run_reporting_errors([&] {
    const d9d::ConfigCommand command = d9d::parse_config_command(argc, argv);
    if (command.wants_help || command.wants_schema) {
      exit_code = run(d9d::kQwen3Dense);
      return;
    }
    const d9d::HuggingFaceDirectory source(source_of(command));
    d9d::visit_family_of(source.read_config(), [&](const auto& family) { exit_code = run(family); });
  });
  return of_errors != 0 ? of_errors : exit_code;
}

}  // namespace examples
