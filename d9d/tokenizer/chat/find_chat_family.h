// Finds the chat template that was published with a tokenizer.
//
// Example
//   const d9d::ChatFamily family = d9d::chat_family_beside("Qwen3-0.6B/tokenizer.json");    // kQwen3
#pragma once

#include <filesystem>

#include "d9d/tokenizer/chat/chat_template.h"

namespace d9d {

// Applies chat_family_of() to the file chat_template.jinja in the tokenizer's folder, or else to "chat_template" in its
// tokenizer_config.json, which is a text or a list of named templates, of which "default" is used. Throws ConfigError
// that names the file if there is no template, or if it is not that of a published family.
[[nodiscard]] ChatFamily chat_family_beside(const std::filesystem::path& tokenizer);

}  // namespace d9d
