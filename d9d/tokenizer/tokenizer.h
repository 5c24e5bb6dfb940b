// A byte-level BPE tokenizer from the tokenizer.json of a published model (GPT-2, Qwen, Llama 3, gpt-oss and others):
// it gives the same ids, offsets and texts as Hugging Face's tokenizers (0.23).
//
// Example
//   const auto tokenizer = d9d::Tokenizer::from_file("Qwen3-0.6B/tokenizer.json");
//   const d9d::Encoding encoding = tokenizer.encode("The capital of France", {.with_offsets = true});
//   const std::string text = tokenizer.decode(encoding.ids);
//   const auto end = tokenizer.token_to_id("<|im_end|>");   // none if there is no such token
//
// A file with unsupported features is rejected when it is read, with an error that names file and key. Any number of
// threads may use one object; each call borrows a word cache that earlier calls have filled.
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
  bool add_special_tokens = true;  // those of the file's template, such as a first <|begin_of_text|>
  bool with_offsets = false;
  // Special tokens within the text are split like any other text, for untrusted texts that must not contain them.
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
  // Throws IoError if the file cannot be read, and ConfigError for features that are not supported.
  [[nodiscard]] static Tokenizer from_file(const std::filesystem::path& file);
  // `source` names the text in messages.
  [[nodiscard]] static Tokenizer from_json(std::string_view json, const std::string& source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `text`: UTF-8 of less than 4 GiB. Throws ConfigError with the position of the first invalid byte
  // (replace_invalid_utf8 in unicode/utf8.h replaces such bytes as Python does).
  [[nodiscard]] Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Appends the ids to `ids`.
  void append_ids(std::string_view text, const EncodeOptions& options, std::vector<std::uint32_t>& ids) const;

  // The first position in [from, to) at which `text`, UTF-8 of any length, can be divided: the ids of both pieces,
  // encoded separately without the template's tokens, are those of the whole text. It is at a line break that a letter
  // follows. Returns `to` if there is none, or if the tokenizer does not allow division: its pattern is not a published
  // one, it adds a space before texts, or it has added tokens that include white space around them or contain line
  // breaks.
  [[nodiscard]] std::size_t next_cut(std::string_view text, std::size_t from, std::size_t to) const;

  // The tokens of the template before and after the text, for a text that is encoded in pieces.
  [[nodiscard]] std::span<const std::uint32_t> tokens_before_text() const;
  [[nodiscard]] std::span<const std::uint32_t> tokens_behind_text() const;

  // Ids without a token are omitted. Bytes that are not UTF-8, such as a part of a character, become U+FFFD.
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> ids, const DecodeOptions& options = {}) const;
  // The bytes of one token, which may be a part of a character; empty if there is no such token.
  [[nodiscard]] std::string_view token_bytes(std::uint32_t id) const;

  // Converts between ids and tokens as the vocabulary writes them: "Ġthe", "<|im_end|>".
  [[nodiscard]] std::optional<std::uint32_t> token_to_id(std::string_view token) const;
  [[nodiscard]] std::optional<std::string> id_to_token(std::uint32_t id) const;
  // Whether decode() omits the token if skip_special_tokens is set.
  [[nodiscard]] bool is_special(std::uint32_t id) const;
  // The number of tokens, including added ones. Ids may be higher if the vocabulary has gaps: see highest_id().
  [[nodiscard]] std::size_t vocabulary_size() const;
  [[nodiscard]] std::uint32_t highest_id() const;
  [[nodiscard]] const TokenizerIdentity& identity() const;

 private:
  explicit Tokenizer(std::unique_ptr<detail::TokenizerState> state);

  std::unique_ptr<detail::TokenizerState> state_;
};

}  // namespace d9d
