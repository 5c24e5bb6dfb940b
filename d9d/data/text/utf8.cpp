#include "d9d/data/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace d9d {

namespace {

constexpr std::uint64_t kHighBits = 0x8080808080808080;

// The length of the sequence at the begin of `text`, 0 if it is not well formed.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return text.size() >= 2 && continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (text.size() < 3 || !continues(1) || !continues(2)) return 0;
    const bool is_overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool is_surrogate = lead == 0xED && byte(1) >= 0xA0;
    return is_overlong || is_surrogate ? 0 : 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (text.size() < 4 || !continues(1) || !continues(2) || !continues(3)) return 0;
    const bool is_overlong = lead == 0xF0 && byte(1) < 0x90;
    const bool is_beyond = lead == 0xF4 && byte(1) >= 0x90;
    return is_overlong || is_beyond ? 0 : 4;
  }
  return 0;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    if (std::uint64_t word = 0; text.size() - i >= sizeof(word)) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & kHighBits) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const std::size_t length = sequence_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

}  // namespace d9d
