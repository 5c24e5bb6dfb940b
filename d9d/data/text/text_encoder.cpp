#include "d9d/data/text/text_encoder.h"

#include "d9d/base/check.h"

namespace d9d {

EncodedRow TextEncoder::encode_row(std::span<const std::string_view> columns, std::optional<std::int64_t> end) const {
  EncodedRow encoded{.tokens = {tokens_before().begin(), tokens_before().end()}};
  std::int64_t begin = 0;  // first token of the last column
  for (const std::string_view column : columns) {
    begin = std::ssize(encoded.tokens);
    encode(column, encoded.tokens);
  }
  encoded.tokens.insert(encoded.tokens.end(), tokens_behind().begin(), tokens_behind().end());
  if (end) encoded.tokens.push_back(*end);
  if (columns.size() > 1) encoded.targets = {{.begin = begin, .end = std::ssize(encoded.tokens)}};
  return encoded;
}

std::string TextEncoder::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) text += cat(' ', id);
  return text;
}

}  // namespace d9d
