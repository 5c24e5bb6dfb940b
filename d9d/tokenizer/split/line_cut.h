// Where a text may be cut into pieces that are split into words alone: at line breaks. The words of the pieces, one
// piece after the other, are those of the whole.
//
// Example
//   const LineCut cut = line_cut_of(kLlama3Pattern);                        // kBehindBreak
//   const std::size_t end = next_line_cut("a b.\n\nc", /*from=*/2, /*to=*/7, cut);    // 6: "a b.\n\n" and "c"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace d9d::detail {

// At which side of a '\n' that a letter follows.
enum class LineCut : std::uint8_t {
  kNone,         // it is not known that there is such a place
  kBeforeBreak,  // spaces before it are a word, and it is one: GPT-2's pattern
  kBehindBreak,  // spaces and breaks up to it are in one word, or the last of several: all other published patterns
};

// Of a pattern of published_patterns.h; kNone for any other.
[[nodiscard]] LineCut line_cut_of(std::string_view pattern);

// The first such place in [from, to); `to` without one, and for kNone. `text` is valid UTF-8; `from` and `to`, which
// may lie within characters, are at most its size.
[[nodiscard]] std::size_t next_line_cut(std::string_view text, std::size_t from, std::size_t to, LineCut cut);

}  // namespace d9d::detail
