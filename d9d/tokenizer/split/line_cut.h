// Finds line breaks at which a text can be divided into pieces that are split into words independently: the words of
// the pieces, one piece after the other, are those of the whole text.
//
// Example
//   const LineCut cut = line_cut_of(kLlama3Pattern);                        // kBehindBreak
//   const std::size_t end = next_line_cut("a b.\n\nc", /*from=*/2, /*to=*/7, cut);    // 6: "a b.\n\n" and "c"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace d9d::detail {

// The side of a '\n', followed by a letter, on which a text can be divided.
enum class LineCut : std::uint8_t {
  kNone,         // unknown, so the text is not divided
  kBeforeBreak,  // spaces before it are one word and it is another: GPT-2's pattern
  kBehindBreak,  // spaces and line breaks up to it end a word: all other published patterns
};

// For a pattern of published_patterns.h; kNone for any other.
[[nodiscard]] LineCut line_cut_of(std::string_view pattern);

// The first position in [from, to) at which `text` can be divided; `to` if there is none, and for kNone. `text` is
// valid UTF-8; `from` and `to` may be within characters and are at most its size.
[[nodiscard]] std::size_t next_line_cut(std::string_view text, std::size_t from, std::size_t to, LineCut cut);

}  // namespace d9d::detail
