// Turns text into token ids, and rows of text into documents.
//
// Example
//   std::vector<std::int64_t> ids;
//   ByteEncoder().encode("hé", ids);                                      // {104, 195, 169}
//   const EncodedRow pair = ByteEncoder().encode_row(columns, /*end=*/0);  // of a prompt and its answer
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/data/text/encoded_row.h"
#include "d9d/tokenizer/tokenizer_identity.h"

namespace d9d {

class TextEncoder {
 public:
  TextEncoder() = default;
  TextEncoder(const TextEncoder&) = delete;
  TextEncoder& operator=(const TextEncoder&) = delete;
  virtual ~TextEncoder() = default;

  // Appends the ids of `text`, which is UTF-8, without tokens_before() and tokens_behind(). Thread-safe. Throws
  // ConfigError for a text that the encoder cannot represent in tokens, as does encode_row().
  virtual void encode(std::string_view text, std::vector<std::int64_t>& ids) const = 0;
  // Returns the first position in [from, to) at which `text` can be split, so that encode() of both pieces, one after
  // the other, gives the ids of the whole text. Returns `to` if there is none, or if the encoder does not search for
  // one (the default).
  [[nodiscard]] virtual std::size_t next_cut(std::string_view /*text*/, std::size_t /*from*/, std::size_t to) const {
    return to;
  }
  // tokens_before() returns the tokens that precede a row's first column, and tokens_behind() those that follow its
  // last column.
  [[nodiscard]] virtual std::span<const std::int64_t> tokens_before() const { return {}; }
  [[nodiscard]] virtual std::span<const std::int64_t> tokens_behind() const { return {}; }
  // Returns a row's columns as a document; `end`, if set, is its last token. This implementation encodes the columns
  // one after the other between tokens_before() and tokens_behind(). If there are several columns, the targets are the
  // tokens from the last column on. Thread-safe.
  [[nodiscard]] virtual EncodedRow encode_row(std::span<const std::string_view> columns,
                                              std::optional<std::int64_t> end) const;
  // Returns one more than the highest id: ids are 0..vocabulary_size-1.
  [[nodiscard]] virtual std::int64_t vocabulary_size() const = 0;
  // Returns the id of a token by its text ("<|endoftext|>"); nullopt if there is none.
  [[nodiscard]] virtual std::optional<std::int64_t> id_of(std::string_view token) const = 0;
  // Returns the text of ids, with that of markers, for people to read; by default the ids themselves.
  [[nodiscard]] virtual std::string decode(std::span<const std::int64_t> ids) const;
  // Identifies the tokenizer of the ids; unknown by default.
  [[nodiscard]] virtual TokenizerIdentity identity() const { return {}; }
  // Returns a line for the log that says what the encoder has ignored in the rows so far; empty: nothing. Thread-safe.
  [[nodiscard]] virtual std::string remark() const { return {}; }
  // Returns whether a token is special: a marker, such as the end of a document, instead of text.
  [[nodiscard]] virtual bool is_special(std::int64_t /*id*/) const { return false; }
  // Returns a text that identifies the ids: encoders that give different ids have different fingerprints.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
};

// Tokens are the bytes of the text; the text of a token is its byte.
class ByteEncoder final : public TextEncoder {
 public:
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  }
  [[nodiscard]] std::size_t next_cut(std::string_view /*text*/, std::size_t from, std::size_t /*to*/) const override {
    return from;
  }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return 256; }
  [[nodiscard]] std::optional<std::int64_t> id_of(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token.front());
  }
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override {
    return {ids.begin(), ids.end()};
  }
  [[nodiscard]] TokenizerIdentity identity() const override { return byte_tokenizer_identity(); }
  [[nodiscard]] std::string fingerprint() const override { return "bytes"; }
};

}  // namespace d9d
