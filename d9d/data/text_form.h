// How the data of a job makes tokens of text, for those who write prompts as the data is written.
//
// Example
//   const std::optional<d9d::TextForm> form = d9d::text_form(config.data);
//   if (form && form->tokenizer) prompt = Tokenizer::from_file(*form->tokenizer).encode(text).ids;
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "d9d/data/config.h"
#include "d9d/tokenizer/chat/chat_template.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

struct TextForm {
  std::optional<std::filesystem::path> tokenizer = {};  // unset: tokens are bytes
  bool add_special_tokens = false;
  std::optional<std::string> end_of_document = {};
  std::optional<ChatFamily> chat = {};  // of rows that are conversations

  friend bool operator==(const TextForm&, const TextForm&) = default;
};

// nullopt for files of token ids, and for mixtures of sources that differ. Throws as chat_family().
[[nodiscard]] std::optional<TextForm> text_form(const DataConfig& config);

// Of one source, and of all that are text, in their order.
[[nodiscard]] std::optional<TextForm> text_form(const SourceConfig& config);
[[nodiscard]] std::vector<TextForm> text_forms(const DataConfig& config);

// The tokenizer of a form, of bytes too, and what messages call it ("'Qwen3-0.6B/tokenizer.json'", "bytes"). Throws as
// check_tokenizer_file() and Tokenizer::from_file().
[[nodiscard]] Tokenizer tokenizer_of(const TextForm& form);
[[nodiscard]] std::string tokenizer_name(const TextForm& form);

// Throws ConfigError that names the key "tokenizer" of the data unless the file is there.
void check_tokenizer_file(const std::filesystem::path& path);

// The template of a source of conversations: the one that it names, or chat_family_beside() its tokenizer, whose errors
// it throws.
[[nodiscard]] ChatFamily chat_family(const ColumnsConfig& conversations);

}  // namespace d9d
