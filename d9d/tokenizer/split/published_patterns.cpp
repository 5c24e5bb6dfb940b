#include "d9d/tokenizer/split/published_patterns.h"

#include <cstddef>
#include <optional>

#include "d9d/tokenizer/split/classified_text.h"

namespace d9d::detail {
namespace {

// Each scanner is a function (text, begin) that returns the end of the match that begins at `begin` < size. It tries
// the alternatives in the order of the pattern, one of which matches any character.

enum class LetterCase { kExact, kAny };

// Returns the end of 's 't 're 've 'm 'll 'd at `begin`, or `begin` if there is none. With kAny, U+017F counts as an s
// because of case folding.
std::size_t contraction_end(const ClassifiedText& text, std::size_t begin, LetterCase letter_case) {
  if (begin + 1 >= text.size() || text.byte(begin) != '\'') return begin;
  const auto letter = [&](std::size_t position) -> char {
    if (position >= text.size()) return '\0';
    const char byte = text.byte(position);
    return letter_case == LetterCase::kAny && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : byte;
  };
  const char first = letter(begin + 1);
  const char second = letter(begin + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return begin + 3;
  if (letter_case == LetterCase::kAny && first == '\xC5' && second == '\xBF') return begin + 3;
  return begin;
}

// \s+(?!\S)|\s+ : `begin` is a space.
std::size_t spaces_end(const ClassifiedText& text, std::size_t begin) {
  std::size_t end = begin;
  std::size_t last = begin;  // begin of the last space
  while (end < text.size()) {
    const auto next = text.at(end);
    if ((next.bits & kSpace) == 0) return last > begin ? last : end;
    last = end;
    end = next.end;
  }
  return end;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : `begin` is a space.
std::size_t spaces_or_lines_end(const ClassifiedText& text, std::size_t begin) {
  std::size_t end_of_lines = begin;  // position after the last line break
  for (std::size_t position = begin; position < text.size();) {
    const auto next = text.at(position);
    if ((next.bits & kSpace) == 0) break;
    position = next.end;
    if ((next.bits & kLineBreak) != 0) end_of_lines = position;
  }
  return end_of_lines > begin ? end_of_lines : spaces_end(text, begin);
}

// \p{N}{1,n} : `begin` is a number.
std::size_t digits_end(const ClassifiedText& text, std::size_t begin, int most) {
  std::size_t end = begin;
  for (int i = 0; i < most && (text.bits(end) & kNumber) != 0; ++i) end = text.at(end).end;
  return end;
}

struct Gpt2Scanner {
  std::size_t operator()(const ClassifiedText& text, std::size_t begin) const {
    if (const std::size_t end = contraction_end(text, begin, LetterCase::kExact); end > begin) return end;
    const std::size_t start = text.byte(begin) == ' ' && begin + 1 < text.size() ? begin + 1 : begin;  // " ?"
    const ClassBits bits = text.at(start).bits;
    if ((bits & kLetter) != 0) return text.skip(start, kLetter);
    if ((bits & kNumber) != 0) return text.skip(start, kNumber);
    if ((bits & kSpace) == 0) return text.skip_others(start, kSpace | kLetter | kNumber);
    return spaces_end(text, begin);
  }
};

// Scans the patterns of the cl100k family: kWordLetters are the classes of letters in words, kMostDigits the maximum
// number of digits in a word.
template <ClassBits kWordLetters, int kMostDigits>
struct Cl100kScanner {
  std::size_t operator()(const ClassifiedText& text, std::size_t begin) const {
    const auto first = text.at(begin);
    if ((first.bits & kLetter) != 0) return text.skip(first.end, kWordLetters);
    if (const std::size_t end = contraction_end(text, begin, LetterCase::kAny); end > begin) return end;
    if ((first.bits & (kLineBreak | kNumber)) == 0) {  // [^\r\n\p{L}\p{N}]?
      const std::size_t end = text.skip(first.end, kWordLetters);
      if (end > first.end || (first.bits & kWordLetters) != 0) return end;
    }
    if ((first.bits & kNumber) != 0) return digits_end(text, begin, kMostDigits);
    constexpr ClassBits kNoSymbol = kSpace | kNumber | kWordLetters;
    const std::size_t start = text.byte(begin) == ' ' && begin + 1 < text.size() ? begin + 1 : begin;
    if ((text.at(start).bits & kNoSymbol) == 0) return text.skip(text.skip_others(start, kNoSymbol), kLineBreak);
    return spaces_or_lines_end(text, begin);
  }
};

struct O200kScanner {
  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ : nullopt if it does not match.
  static std::optional<std::size_t> lower_word_end(const ClassifiedText& text, std::size_t begin) {
    std::size_t end = begin;
    std::size_t behind_caseless = begin;  // position after the last letter that is in both classes
    while (end < text.size()) {
      const auto next = text.at(end);
      if ((next.bits & kUpperSide) == 0) break;
      end = next.end;
      if ((next.bits & kLowerSide) != 0) behind_caseless = end;
    }
    if (const std::size_t lower_end = text.skip(end, kLowerSide); lower_end > end) return lower_end;
    if (behind_caseless > begin) return behind_caseless;  // backtracking: the first class releases that letter
    return std::nullopt;
  }

  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
  static std::optional<std::size_t> upper_word_end(const ClassifiedText& text, std::size_t begin) {
    const std::size_t end = text.skip(begin, kUpperSide);
    if (end == begin) return std::nullopt;
    return text.skip(end, kLowerSide);
  }

  std::size_t operator()(const ClassifiedText& text, std::size_t begin) const {
    const auto first = text.at(begin);
    const bool has_prefix = (first.bits & (kLineBreak | kLetter | kNumber)) == 0;
    for (const auto word_end : {lower_word_end, upper_word_end}) {
      std::optional<std::size_t> end = has_prefix ? word_end(text, first.end) : std::nullopt;
      if (!end) end = word_end(text, begin);
      if (end) return contraction_end(text, *end, LetterCase::kAny);
    }
    if ((first.bits & kNumber) != 0) return digits_end(text, begin, 3);
    constexpr ClassBits kNoSymbol = kSpace | kLetter | kNumber;
    const std::size_t start = text.byte(begin) == ' ' && begin + 1 < text.size() ? begin + 1 : begin;
    if ((text.at(start).bits & kNoSymbol) == 0) {
      std::size_t end = text.skip_others(start, kNoSymbol);
      while (end < text.size() && (text.byte(end) == '\r' || text.byte(end) == '\n' || text.byte(end) == '/')) ++end;
      return end;
    }
    return spaces_or_lines_end(text, begin);
  }
};

template <class Scanner>
class ScanningSplitter final : public Splitter {
 public:
  void split(std::string_view text, std::uint32_t shift, std::vector<Span>& words) const override {
    const ClassifiedText classified(text);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = Scanner()(classified, begin);
      words.push_back({static_cast<std::uint32_t>(begin + shift), static_cast<std::uint32_t>(end + shift)});
      begin = end;
    }
  }
};

}  // namespace

std::unique_ptr<Splitter> published_splitter(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return std::make_unique<ScanningSplitter<Gpt2Scanner>>();
  if (pattern == kQwen2Pattern) return std::make_unique<ScanningSplitter<Cl100kScanner<kLetter, 1>>>();
  if (pattern == kQwen35Pattern) return std::make_unique<ScanningSplitter<Cl100kScanner<kLetter | kMark, 1>>>();
  if (pattern == kLlama3Pattern) return std::make_unique<ScanningSplitter<Cl100kScanner<kLetter, 3>>>();
  if (pattern == kO200kPattern) return std::make_unique<ScanningSplitter<O200kScanner>>();
  return nullptr;
}

}  // namespace d9d::detail
