// Parses configuration text as JSON, more strictly than the standard: no key may occur twice in an object, and nesting
// is limited to 64 levels.
//
// Example
//   const Json json = read_json_file("pretrain.json");   // throws ConfigError with line and column
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace d9d {

using Json = nlohmann::ordered_json;  // keeps keys in the order of the text

// `source` names the text in messages.
[[nodiscard]] Json parse_json_text(std::string_view text, const std::string& source);

// Throws IoError if the file cannot be read.
[[nodiscard]] Json read_json_file(const std::filesystem::path& file);

// The value on one line for a message, shortened if it is long.
[[nodiscard]] std::string json_excerpt(const Json& json);

}  // namespace d9d
