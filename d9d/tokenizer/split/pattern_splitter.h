// Splitters that find matches of a pattern in a text, for the pre-tokenizers Split and Digits. SplitBehavior says how
// matches become words.
//
// Example
//   const auto splitter = regex_splitter(R"(\p{N}{1,3})", SplitBehavior::kIsolated, false, "tokenizer.json: ");
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "d9d/tokenizer/split/splitter.h"

namespace d9d::detail {

// Examples: the words of "the-final--countdown" if "-" matches.
enum class SplitBehavior : std::uint8_t {
  kRemoved,             // the | final | countdown
  kIsolated,            // the | - | final | - | - | countdown
  kContiguous,          // the | - | final | -- | countdown
  kMergedWithPrevious,  // the- | final- | - | countdown
  kMergedWithNext,      // the | -final | - | -countdown
};

// `invert`: the text between matches is treated as the matches.
[[nodiscard]] std::unique_ptr<Splitter> literal_splitter(std::string literal, SplitBehavior behavior, bool invert);
// Matches single numbers, \p{N}.
[[nodiscard]] std::unique_ptr<Splitter> digits_splitter(SplitBehavior behavior);
// `pattern` has the syntax of Oniguruma, as in Hugging Face's tokenizers. Throws ConfigError, which begins with
// `place`, for a construct that cannot be matched in the same way.
[[nodiscard]] std::unique_ptr<Splitter> regex_splitter(std::string_view pattern, SplitBehavior behavior, bool invert,
                                                       const std::string& place);

}  // namespace d9d::detail
