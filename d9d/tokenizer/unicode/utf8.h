// UTF-8: functions that validate untrusted bytes, and functions that read validated text without further checks.
//
// Example
//   if (const auto bad = d9d::invalid_utf8_at(bytes)) ...            // the first byte that is no UTF-8
//   const std::string text = d9d::replace_invalid_utf8(bytes);       // as Python's decode(errors="replace")
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace d9d {

// The position of the first byte of the first ill-formed sequence (Unicode, table 3-7), if any.
[[nodiscard]] std::optional<std::size_t> invalid_utf8_at(std::string_view bytes);

// Replaces each maximal part of an ill-formed sequence by U+FFFD, as Unicode recommends and as Python and Rust do.
[[nodiscard]] std::string replace_invalid_utf8(std::string_view bytes);

// The number of bytes, 0 to 3, at the end of `bytes` that begin a character which further bytes may complete.
[[nodiscard]] std::size_t incomplete_utf8_at_end(std::string_view bytes);

namespace detail {

struct CodePoint {
  char32_t value;
  std::uint32_t length;  // bytes
};

// `text` is valid UTF-8 and `position` the begin of a character.
[[nodiscard]] inline CodePoint code_point_at(std::string_view text, std::size_t position) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data()) + position;
  const char32_t first = bytes[0];
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (bytes[1] & 0x3Fu), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (bytes[1] & 0x3Fu) << 6 | (bytes[2] & 0x3Fu), 3};
  return {(first & 0x07) << 18 | (bytes[1] & 0x3Fu) << 12 | (bytes[2] & 0x3Fu) << 6 | (bytes[3] & 0x3Fu), 4};
}

// The character that ends at `position`, which must be > 0.
[[nodiscard]] inline CodePoint code_point_before(std::string_view text, std::size_t position) {
  std::size_t begin = position - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return code_point_at(text, begin);
}

[[nodiscard]] inline bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

[[nodiscard]] std::size_t count_characters(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

// Expects valid UTF-8.
[[nodiscard]] std::u32string to_utf32(std::string_view text);

}  // namespace detail
}  // namespace d9d
