// Whether two tokenizers give the same ids, whatever their files are called and however they are written.
//
// Example
//   if (data.identity() != Tokenizer::from_file("Qwen3-0.6B/tokenizer.json").identity()) refuse();
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

// Hashes; empty: unknown.
struct TokenizerIdentity {
  // Of the ids that text becomes by characters and merges, each with its text. A mark such as <|im_end|> is none,
  // wherever a file lists it: chat models add and rename marks.
  std::string vocabulary = {};
  std::string all = {};  // of added tokens, merges, normalisation and splitting too

  friend bool operator==(const TokenizerIdentity&, const TokenizerIdentity&) = default;
};

// `file`: a tokenizer.json that Tokenizer::from_json takes.
[[nodiscard]] TokenizerIdentity identity_of_tokenizer(const nlohmann::json& file);

// The tokenizer.json of text as bytes: each of the ids 0 to 255 is a byte.
[[nodiscard]] std::string byte_tokenizer_json();
[[nodiscard]] TokenizerIdentity byte_tokenizer_identity();

}  // namespace d9d
