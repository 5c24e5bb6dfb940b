#include "d9d/tokenizer/bpe/byte_alphabet.h"

#include <array>
#include <cstddef>

#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::detail {
namespace {

constexpr int kNumSubstitutes = 68;  // bytes that are not represented by themselves

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> characters = {};
  std::array<unsigned char, kNumSubstitutes> substituted = {};  // by character - 256

  constexpr Alphabet() {
    std::size_t next = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
      characters[byte] = stands_for_itself(byte) ? byte : static_cast<char32_t>(256 + next);
      if (!stands_for_itself(byte)) substituted[next++] = static_cast<unsigned char>(byte);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, kAlphabet.characters[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint point = code_point_at(text, position);
    position += point.length;
    if (point.value < 256 && stands_for_itself(point.value)) {
      bytes.push_back(static_cast<char>(point.value));
    } else if (point.value >= 256 && point.value < 256 + kNumSubstitutes) {
      bytes.push_back(static_cast<char>(kAlphabet.substituted[point.value - 256]));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

}  // namespace d9d::detail
