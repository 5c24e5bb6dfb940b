#include "d9d/tokenizer/decode_stream.h"

#include <utility>

#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d {

std::string DecodeStream::step(std::uint32_t id) {
  if (!options_.skip_special_tokens || !tokenizer_.is_special(id)) pending_ += tokenizer_.token_bytes(id);
  const std::size_t end = pending_.size() - incomplete_utf8_at_end(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, end));
  pending_.erase(0, end);
  return text;
}

std::string DecodeStream::finish() { return replace_invalid_utf8(std::exchange(pending_, {})); }

}  // namespace d9d
