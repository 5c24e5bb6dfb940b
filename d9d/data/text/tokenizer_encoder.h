// A TextEncoder with the tokenizer of a tokenizer.json.
//
// Example
//   const TokenizerEncoder encoder("Qwen3-0.6B/tokenizer.json", {.add_special_tokens = false});
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "d9d/data/text/text_encoder.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

class TokenizerEncoder : public TextEncoder {
 public:
  // Throws the errors of Tokenizer::from_file.
  TokenizerEncoder(const std::filesystem::path& file, EncodeOptions options);

  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override;
  [[nodiscard]] std::size_t next_cut(std::string_view text, std::size_t from, std::size_t to) const override {
    return tokenizer_.next_cut(text, from, to);
  }
  [[nodiscard]] std::span<const std::int64_t> tokens_before() const override { return before_; }
  [[nodiscard]] std::span<const std::int64_t> tokens_behind() const override { return behind_; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return std::int64_t{tokenizer_.highest_id()} + 1; }
  [[nodiscard]] std::optional<std::int64_t> id_of(std::string_view token) const override;
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override {
    return tokenizer_.decode(std::vector<std::uint32_t>(ids.begin(), ids.end()), {.skip_special_tokens = false});
  }
  [[nodiscard]] TokenizerIdentity identity() const override { return tokenizer_.identity(); }
  [[nodiscard]] bool is_special(std::int64_t id) const override {
    return tokenizer_.is_special(static_cast<std::uint32_t>(id));
  }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }

 protected:
  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  Tokenizer tokenizer_;
  EncodeOptions options_;                  // used by encode()
  std::vector<std::int64_t> before_ = {};  // tokens of the template if special tokens are added, else empty
  std::vector<std::int64_t> behind_ = {};
  std::string fingerprint_;
};

}  // namespace d9d
