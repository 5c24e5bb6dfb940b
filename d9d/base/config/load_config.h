// A program's configuration from its command line: CONFIG.json [key.path=value ...].
//
// Example
//   int main(int argc, char** argv) {
//     const auto config = d9d::load_config<PretrainConfig>(argc, argv);
//     ...
//   }
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

namespace d9d {

// Not an error: reports --help or --schema. The text goes to standard output, and the program ends with exit code 0.
struct HelpRequested : UsageError {
  using UsageError::UsageError;
};

// Changes the JSON of a whole configuration before it is parsed; returns notes for the user, one line each.
using ConfigRewrite = std::function<std::vector<std::string>(Json& config, const ConfigPath& root)>;

// A command line that asks for a configuration.
struct ConfigCommand {
  std::string program = {};
  std::filesystem::path file = {};
  std::vector<std::string> overrides = {};
  bool wants_help = false;
  bool wants_schema = false;
};

// Throws UsageError.
[[nodiscard]] ConfigCommand parse_config_command(int argc, const char* const* argv);

// Reads the file, applies the overrides, then the rewrite, whose notes are written to standard error.
[[nodiscard]] Json read_config(const ConfigCommand& command, const ConfigRewrite& rewrite);

[[nodiscard]] std::string usage_text(const std::string& program, std::span<const std::string_view> keys);

// The path by which messages refer to the result of read_config.
[[nodiscard]] ConfigPath config_root(const ConfigCommand& command);

template <Record T>
[[nodiscard]] T load_record(const std::filesystem::path& file) {
  return parse_record<T>(read_json_file(file), ConfigPath{.source = file.string()});
}

// Throws UsageError (exit code 2), HelpRequested, ConfigError or IoError.
template <Record T>
[[nodiscard]] T load_config(int argc, const char* const* argv, const ConfigRewrite& rewrite = nullptr) {
  const ConfigCommand command = parse_config_command(argc, argv);
  if (command.wants_help) throw HelpRequested(usage_text(command.program, record_type<T>().keys()));
  if (command.wants_schema) throw HelpRequested(json_schema<T>().dump(2));
  return parse_record<T>(read_config(command, rewrite), config_root(command));
}

}  // namespace d9d
