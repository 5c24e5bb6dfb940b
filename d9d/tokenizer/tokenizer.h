// A byte-level BPE tokenizer from the tokenizer.json of a published model (GPT-2, Qwen, Llama 3, gpt-oss and others):
// the ids, offsets and texts that Hugging Face's tokenizers (0.23) give.
//
// Example
//   const auto tokenizer = d9d::Tokenizer::from_file("Qwen3-0.6B/tokenizer.json");
//   const d9d::Encoding encoding = tokenizer.encode("The capital of France", {.with_offsets = true});
//   const std::string text = tokenizer.decode(encoding.ids);
//   const auto end = tokenizer.token_to_id("<|im_end|>");   // none if there is no such token
//
// What a file asks for and this does not do is refused when it is read, by file and key. Any number of threads may
// use one object; each call borrows a cache of words that calls before it filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/tokenizer/encoding.h"
#include "d9d/tokenizer/tokenizer_identity.h"

namespace d9d {

struct EncodeOptions {
  bool add_special_tokens = true;  // those of the file's template, such as <|begin_of_text|> in front
  bool with_offsets = false;
  // Special tokens that stand in the text are split like any text: for texts from people who must not write them.
  bool split_special_tokens = false;
};

struct DecodeOptions {
  bool skip_special_tokens = true;
};

namespace detail {
struct TokenizerState;
}

class Tokenizer {
 public:
  // Throws IoError if the file cannot be read, ConfigError for what it asks for and is not built.
  [[nodiscard]] static Tokenizer from_file(const std::filesystem::path& file);
  // `source` names the text in messages.
  [[nodiscard]] static Tokenizer from_json(std::string_view json, const std::string& source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `text`: UTF-8 of less than 4 GiB. Throws ConfigError with the position of a byte that is none
  // (replace_invalid_utf8 in unicode/utf8.h mends a text as Python does).
  [[nodiscard]] Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Adds the ids to `ids`.
  void append_ids(std::string_view text, const EncodeOptions& options, std::vector<std::uint32_t>& ids) const;

  // The first place in [from, to) where `text`, UTF-8 of any length, may be cut: the ids of its pieces, encoded alone
  // without the template's tokens, are those of the whole. At a line break that a letter follows; `to` without one, and
  // for a tokenizer of which this is not known: another pattern than the published ones, a space in front of texts,
  // added tokens that take white space around them or have line breaks.
  [[nodiscard]] std::size_t next_cut(std::string_view text, std::size_t from, std::size_t to) const;

  // What stands around the text where special tokens are added: for a text that is encoded in pieces.
  [[nodiscard]] std::span<const std::uint32_t> tokens_before_text() const;
  [[nodiscard]] std::span<const std::uint32_t> tokens_behind_text() const;

  // Ids without a token are left out. Bytes that are no UTF-8, such as a part of a character, become U+FFFD.
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> ids, const DecodeOptions& options = {}) const;
  // The bytes of one token, which may be a part of a character; empty without such a token.
  [[nodiscard]] std::string_view token_bytes(std::uint32_t id) const;

  // A token as the vocabulary writes it: "Ġthe", "<|im_end|>".
  [[nodiscard]] std::optional<std::uint32_t> token_to_id(std::string_view token) const;
  [[nodiscard]] std::optional<std::string> id_to_token(std::uint32_t id) const;
  // Whether decode leaves it out where special tokens are skipped.
  [[nodiscard]] bool is_special(std::uint32_t id) const;
  // How many tokens there are, added ones included. Ids may reach further where the vocabulary has gaps: highest_id().
  [[nodiscard]] std::size_t vocabulary_size() const;
  [[nodiscard]] std::uint32_t highest_id() const;
  [[nodiscard]] const TokenizerIdentity& identity() const;

 private:
  explicit Tokenizer(std::unique_ptr<detail::TokenizerState> state);

  std::unique_ptr<detail::TokenizerState> state_;
};

}  // namespace d9d
