#include "d9d/base/config/load_config.h"

#include <iostream>

#include "d9d/base/config/override.h"

namespace d9d {

namespace {

// Whether an argument with '=' is nevertheless a path: of an existing file, or with a folder. Keys have no '/'.
bool is_path(const std::string& argument) {
  std::error_code error;
  return argument.substr(0, argument.find('=')).find('/') != std::string::npos ||
         std::filesystem::is_regular_file(argument, error);
}

}  // namespace

ConfigCommand parse_config_command(int argc, const char* const* argv) {
  ConfigCommand command{.program = argc > 0 ? argv[0] : "program"};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      command.wants_help = true;
    } else if (argument == "--schema") {
      command.wants_schema = true;
    } else if (command.file.empty()) {
      D9D_CHECK(argument[0] != '-' && (argument.find('=') == std::string::npos || is_path(argument)), UsageError,
                "[config] expected a configuration file first, got '", argument, "'. Usage: ", command.program,
                " CONFIG.json [key.path=value ...]");
      command.file = argument;
    } else {
      command.overrides.push_back(argument);
    }
  }
  D9D_CHECK(!command.file.empty() || command.wants_help || command.wants_schema, UsageError,
            "[config] expected a configuration file, got no argument. Usage: ", command.program,
            " CONFIG.json [key.path=value ...]");
  return command;
}

Json read_config(const ConfigCommand& command, const ConfigRewrite& rewrite) {
  Json config = read_json_file(command.file);
  for (const auto& assignment : command.overrides) apply_override(config, assignment);
  if (rewrite) {
    for (const auto& note : rewrite(config, config_root(command))) std::clog << config_root(command) << note << '\n';
  }
  return config;
}

std::string usage_text(const std::string& program, std::span<const std::string_view> keys) {
  std::string text = "Usage: " + program + " CONFIG.json [key.path=value ...]\n" +
                     "  key.path=value   replaces or adds one value; phases.0.steps=5 reaches into a list\n" +
                     "  --help           prints this\n" + "  --schema         prints the JSON schema\n" +
                     "Top-level keys:\n";
  for (const auto key : keys) text += "  " + std::string(key) + '\n';
  return text;
}

ConfigPath config_root(const ConfigCommand& command) {
  return {.source = command.file.string() + (command.overrides.empty() ? "" : " with overrides")};
}

namespace detail {

void load_config(int argc, const char* const* argv, const ConfigRewrite& rewrite, const RecordType& type,
                 void* record) {
  const ConfigCommand command = parse_config_command(argc, argv);
  if (command.wants_help) throw HelpRequested(usage_text(command.program, type.keys()));
  if (command.wants_schema) throw HelpRequested(json_schema(type).dump(2));
  type.parse(read_config(command, rewrite), config_root(command), {}, record);
}

void load_record(const std::filesystem::path& file, const RecordType& type, void* record) {
  type.parse(read_json_file(file), ConfigPath{.source = file.string()}, {}, record);
}

}  // namespace detail

}  // namespace d9d
