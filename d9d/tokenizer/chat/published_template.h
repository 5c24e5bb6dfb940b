// The chat template that was published with a tokenizer.
//
// Example
//   const auto published = d9d::published_template("Qwen3-0.6B/tokenizer.json");
//   if (published) std::cout << published->place;                                  // .../tokenizer_config.json
#pragma once

#include <filesystem>
#include <optional>

#include "d9d/tokenizer/chat/jinja/jinja_template.h"

namespace d9d {

// Returns the text of chat_template.jinja in the tokenizer's folder, or else of "chat_template" in its
// tokenizer_config.json, which is a text or a list of named templates; nullopt if there is none. Of a list, and of the
// folder additional_chat_templates beside chat_template.jinja, "default" and for tools "tool_use" are used. Throws
// ConfigError that names the file if it is no JSON.
[[nodiscard]] std::optional<JinjaSource> published_template(const std::filesystem::path& tokenizer);

// The template of a file, with the special tokens that lie beside the tokenizer. Throws IoError if it cannot be read.
[[nodiscard]] JinjaSource template_in_file(const std::filesystem::path& file, const std::filesystem::path& tokenizer);

}  // namespace d9d
