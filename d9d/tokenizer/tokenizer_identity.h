// Identifies tokenizers that give the same ids, independently of the names and formatting of their files.
//
// Example
//   if (data.identity() != Tokenizer::from_file("Qwen3-0.6B/tokenizer.json").identity()) refuse();
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

// Hashes that identify a tokenizer; empty: unknown.
struct TokenizerIdentity {
  // Hash of the ids, each with its text, that ordinary text is encoded to. Markers such as <|im_end|> are excluded,
  // wherever a file lists them: chat models add and rename markers.
  std::string vocabulary = {};
  std::string all = {};  // also covers added tokens, merges, normalisation and splitting

  friend bool operator==(const TokenizerIdentity&, const TokenizerIdentity&) = default;
};

// The identity of `file`, a tokenizer.json that Tokenizer::from_json accepts.
[[nodiscard]] TokenizerIdentity identity_of_tokenizer(const nlohmann::json& file);

// A tokenizer.json whose tokens are bytes: each of the ids 0 to 255 is a byte.
[[nodiscard]] std::string byte_tokenizer_json();
[[nodiscard]] TokenizerIdentity byte_tokenizer_identity();

}  // namespace d9d
