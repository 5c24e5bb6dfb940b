// Splitters that find matches in a text, and what becomes of a match: the words of a Split or Digits pre-tokeniser.
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

// Of "the-final--countdown", where "-" matches:
enum class SplitBehavior : std::uint8_t {
  kRemoved,             // the | final | countdown
  kIsolated,            // the | - | final | - | - | countdown
  kContiguous,          // the | - | final | -- | countdown
  kMergedWithPrevious,  // the- | final- | - | countdown
  kMergedWithNext,      // the | -final | - | -countdown
};

// `invert`: what does not match counts as the matches.
[[nodiscard]] std::unique_ptr<Splitter> literal_splitter(std::string literal, SplitBehavior behavior, bool invert);
// Of single numbers, \p{N}.
[[nodiscard]] std::unique_ptr<Splitter> digits_splitter(SplitBehavior behavior);
// `pattern` in the syntax of Oniguruma, as Hugging Face's tokenizers have it. Throws ConfigError, which begins with
// `place`, for what cannot be matched alike.
[[nodiscard]] std::unique_ptr<Splitter> regex_splitter(std::string_view pattern, SplitBehavior behavior, bool invert,
                                                       const std::string& place);

}  // namespace d9d::detail
