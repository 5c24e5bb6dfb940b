#include "d9d/tokenizer/chat/encode_chat.h"

#include <cstddef>
#include <utility>

#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d {
namespace {

// Converts the ranges of the assistant, which are ascending, from bytes to characters.
std::vector<TokenOffset> in_characters(const RenderedChat& chat) {
  std::vector<TokenOffset> ranges;
  const std::string_view text = chat.text;
  std::size_t byte = 0;
  std::int64_t character = 0;
  const auto advance = [&](std::size_t to) {
    character += static_cast<std::int64_t>(detail::count_characters(text.substr(byte, to - byte)));
    byte = to;
    return character;
  };
  for (const TextRange& range : chat.assistant) {
    const std::int64_t begin = advance(range.begin);
    ranges.push_back({begin, advance(range.end)});
  }
  return ranges;
}

}  // namespace

EncodedChat encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat) {
  Encoding encoding = tokenizer.encode(chat.text, {.add_special_tokens = false, .with_offsets = true});
  EncodedChat result = {.ids = std::move(encoding.ids), .is_assistant = {}};
  const std::vector<TokenOffset> ranges = in_characters(chat);
  std::size_t next = 0;
  for (const TokenOffset& token : encoding.offsets) {
    while (next < ranges.size() && ranges[next].end <= token.begin) ++next;
    result.is_assistant.push_back(next < ranges.size() && token.end > ranges[next].begin);
  }
  return result;
}

}  // namespace d9d
