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

namespace detail {
// load_config() and load_record() into `record`, a default-constructed one of the type.
void load_config(int argc, const char* const* argv, const ConfigRewrite& rewrite, const RecordType& type, void* record);
void load_record(const std::filesystem::path& file, const RecordType& type, void* record);
}  // namespace detail

template <Record T>
[[nodiscard]] T load_record(const std::filesystem::path& file) {
  T record{};
  detail::load_record(file, record_type<T>(), &record);
  return record;
}

// Throws UsageError (exit code 2), HelpRequested, ConfigError or IoError.
template <Record T>
[[nodiscard]] T load_config(int argc, const char* const* argv, const ConfigRewrite& rewrite = nullptr) {
  T config{};
  detail::load_config(argc, argv, rewrite, record_type<T>(), &config);
  return config;
}

}  // namespace d9d
