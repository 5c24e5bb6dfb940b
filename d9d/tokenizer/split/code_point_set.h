// A set of code points as sorted ranges.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "d9d/tokenizer/unicode/categories.h"

namespace d9d::detail {

class CodePointSet {
 public:
  struct Range {
    char32_t begin;
    char32_t end;  // exclusive
    friend bool operator==(const Range&, const Range&) = default;
  };

  void add(char32_t begin, char32_t end);
  void add(const CodePointSet& other);
  [[nodiscard]] CodePointSet complement() const;
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }
  [[nodiscard]] bool contains(char32_t code_point) const;

 private:
  std::vector<Range> ranges_;  // sorted, with gaps between them
};

// Those that have one of `bits`.
[[nodiscard]] CodePointSet set_of_class(ClassBits bits);
// \w of patterns, which are Oniguruma's: unlike kWord, which is around added tokens, without joiners and with the
// superscripts and fractions of Latin-1.
[[nodiscard]] CodePointSet pattern_word_characters();
// "L", "Lu", ...: a general category, or the first letter of several. None for another name.
[[nodiscard]] std::optional<CodePointSet> set_of_category(std::string_view name);

}  // namespace d9d::detail
