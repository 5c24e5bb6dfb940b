#include "d9d/tokenizer/unicode/utf8.h"

#include <algorithm>
#include <cstring>

namespace d9d {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Sequence {
  std::size_t length;  // of the character, or of the longest valid part of one
  bool is_valid;
  bool is_cut;  // the bytes end within the character
};

// Reads the character, or the invalid sequence, at `position` (Unicode, table 3-7).
Sequence sequence_at(std::string_view bytes, std::size_t position) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[position + i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {1, true, false};
  if (first < 0xC2 || first > 0xF4) return {1, false, false};
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (position + i == bytes.size()) return {i, false, true};
    if (byte(i) < (i == 1 ? lowest : 0x80) || byte(i) > (i == 1 ? highest : 0xBF)) return {i, false, false};
  }
  return {length, true, false};
}

// Skips ASCII from `position` on in blocks of eight bytes; returns the position of the first block that is not ASCII.
std::size_t skip_ascii(std::string_view bytes, std::size_t position) {
  while (position + 8 <= bytes.size()) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes.data() + position, 8);
    if ((eight & 0x8080808080808080) != 0) break;
    position += 8;
  }
  return position;
}

}  // namespace

std::optional<std::size_t> invalid_utf8_at(std::string_view bytes) {
  for (std::size_t position = skip_ascii(bytes, 0); position < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, position);
    if (!sequence.is_valid) return position;
    position += sequence.length;
    if (sequence.length == 1) position = skip_ascii(bytes, position);
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  std::size_t copied = 0;
  for (std::size_t position = 0; position < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, position);
    if (!sequence.is_valid) {
      text.append(bytes, copied, position - copied).append(kReplacement);
      copied = position + sequence.length;
    }
    position += sequence.length;
  }
  return text.append(bytes, copied);
}

std::size_t incomplete_utf8_at_end(std::string_view bytes) {
  for (std::size_t length = std::min<std::size_t>(3, bytes.size()); length > 0; --length) {
    const Sequence sequence = sequence_at(bytes, bytes.size() - length);
    if (sequence.is_cut && sequence.length == length) return length;
  }
  return 0;
}

namespace detail {

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  const auto put_continuation = [&](int shift) { put(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put_continuation(6);
  } else {
    put(0xF0 | code_point >> 18);
    put_continuation(12);
    put_continuation(6);
  }
  put_continuation(0);
}

std::u32string to_utf32(std::string_view text) {
  std::u32string code_points;
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint point = code_point_at(text, position);
    code_points.push_back(point.value);
    position += point.length;
  }
  return code_points;
}

}  // namespace detail
}  // namespace d9d
