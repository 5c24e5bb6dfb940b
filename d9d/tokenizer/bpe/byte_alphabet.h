// The characters that stand for bytes in byte-level vocabularies (GPT-2's bytes_to_unicode): printable bytes of Latin-1
// are represented by themselves, the others by U+0100 and the following characters. "Ġ" is the space.
//
// Example
//   from_byte_alphabet("Ġthe")   // " the"
//   to_byte_alphabet(" the")     // "Ġthe"
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace d9d::detail {

[[nodiscard]] std::string to_byte_alphabet(std::string_view bytes);

// Returns nullopt if a character of `text` (valid UTF-8) represents no byte.
[[nodiscard]] std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace d9d::detail
