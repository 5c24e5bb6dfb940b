// Configuration text as JSON, stricter than the standard: no key twice in an object, at most 64 levels.
//
// Example
//   const Json json = read_json_file("pretrain.json");   // throws ConfigError with line and column
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace d9d {

using Json = nlohmann::ordered_json;  // keeps the order of keys

// `source` names the text in messages.
[[nodiscard]] Json parse_json_text(std::string_view text, const std::string& source);

// Throws IoError when the file cannot be read.
[[nodiscard]] Json read_json_file(const std::filesystem::path& file);

// The value on one line for a message, shortened.
[[nodiscard]] std::string json_excerpt(const Json& json);

}  // namespace d9d
