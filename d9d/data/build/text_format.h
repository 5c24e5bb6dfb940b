// Describes how the data of a job turns text into tokens, so that prompts can be encoded in the same way.
//
// Example
//   const std::optional<d9d::TextFormat> format = d9d::text_format(config.data);
//   if (format && format->tokenizer) prompt = Tokenizer::from_file(*format->tokenizer).encode(text).ids;
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/data/build/config.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/tokenizer/chat/chat_renderer.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

struct TextFormat {
  std::optional<std::filesystem::path> tokenizer = {};  // unset: tokens are bytes
  bool add_special_tokens = false;
  std::optional<std::string> end_of_document = {};
  std::optional<ChatRendererOptions> chat = {};  // of chat_renderer(), if rows are conversations

  friend bool operator==(const TextFormat&, const TextFormat&) = default;
};

// Returns the format that all sources have in common; nullopt for files of token ids, and for mixtures whose sources
// differ. Throws the errors of chat_renderer() where it compares how sources write conversations.
[[nodiscard]] std::optional<TextFormat> text_format(const DataConfig& config);

// text_format() of one source returns its format, nullopt for token ids; text_formats() returns the formats of all
// sources of text, in order.
[[nodiscard]] std::optional<TextFormat> text_format(const SourceConfig& config);
[[nodiscard]] std::vector<TextFormat> text_formats(const DataConfig& config);

// tokenizer_of() returns the tokenizer of a format, or a byte tokenizer; it throws the errors of check_tokenizer_file()
// and Tokenizer::from_file(). tokenizer_name() returns a name for messages ("'Qwen3-0.6B/tokenizer.json'", "bytes").
[[nodiscard]] Tokenizer tokenizer_of(const TextFormat& format);
[[nodiscard]] std::string tokenizer_name(const TextFormat& format);

// Throws ConfigError that names the key "tokenizer" of the data if the file does not exist or is a folder.
void check_tokenizer_file(const std::filesystem::path& path);

// Returns what turns text, or rows of columns, into tokens. Throws the errors of check_tokenizer_file(), of
// chat_renderer() and of the encoders.
[[nodiscard]] std::shared_ptr<const TextEncoder> encoder_of(const TokenizationConfig& config);
[[nodiscard]] std::shared_ptr<const TextEncoder> encoder_of(const ColumnsConfig& columns);

// Returns the token that ends an answer; nullopt if answers end with something else.
[[nodiscard]] std::optional<std::string> end_token(const ChatRenderer& chat, const Tokenizer& tokenizer);

}  // namespace d9d
