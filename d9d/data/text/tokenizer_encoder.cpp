#include "d9d/data/text/tokenizer_encoder.h"

#include "d9d/base/check.h"

namespace d9d {

namespace {

// Returns a text that depends on the behaviour of the tokenizer and not on its file: a copy, or the same tokenizer
// formatted differently, has the same fingerprint.
std::string fingerprint_of(const Tokenizer& tokenizer, const EncodeOptions& options) {
  std::string around;
  if (options.add_special_tokens) {
    for (const std::uint32_t id : tokenizer.tokens_before_text()) around += cat(" ", id);
    around += " text";
    for (const std::uint32_t id : tokenizer.tokens_behind_text()) around += cat(" ", id);
  }
  return cat("tokenizer ", tokenizer.identity().all, around, options.split_special_tokens ? " split" : "");
}

}  // namespace

TokenizerEncoder::TokenizerEncoder(const std::filesystem::path& file, EncodeOptions options)
    : tokenizer_(Tokenizer::from_file(file)), options_(options), fingerprint_(fingerprint_of(tokenizer_, options)) {
  options_.add_special_tokens = false;
  if (!options.add_special_tokens) return;
  const auto before = tokenizer_.tokens_before_text(), behind = tokenizer_.tokens_behind_text();
  before_.assign(before.begin(), before.end());
  behind_.assign(behind.begin(), behind.end());
}

void TokenizerEncoder::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  std::vector<std::uint32_t> encoded;
  tokenizer_.append_ids(text, options_, encoded);
  ids.insert(ids.end(), encoded.begin(), encoded.end());
}

std::optional<std::int64_t> TokenizerEncoder::id_of(std::string_view token) const {
  const auto id = tokenizer_.token_to_id(token);
  if (!id) return std::nullopt;
  return std::int64_t{*id};
}

}  // namespace d9d
