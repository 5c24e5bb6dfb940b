// The chat template that a published tokenizer comes with.
//
// Example
//   const d9d::ChatFamily family = d9d::chat_family_beside("Qwen3-0.6B/tokenizer.json");    // kQwen3
#pragma once

#include <filesystem>

#include "d9d/tokenizer/chat/chat_template.h"

namespace d9d {

// chat_family_of() the file chat_template.jinja in the tokenizer's folder, or of "chat_template" in its
// tokenizer_config.json: a text, or of a list of named ones that named "default". Throws ConfigError that names the
// file, for a folder without a template, or with one that is no published family's.
[[nodiscard]] ChatFamily chat_family_beside(const std::filesystem::path& tokenizer);

}  // namespace d9d
