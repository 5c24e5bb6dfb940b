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

// The code points that have one of `bits`.
[[nodiscard]] CodePointSet set_of_class(ClassBits bits);
// \w in patterns, as Oniguruma defines it. It differs from kWord, which is used for added tokens: it excludes joiners,
// and includes the superscripts and fractions of Latin-1.
[[nodiscard]] CodePointSet pattern_word_characters();
// The set of a general category ("Lu") or of all categories with a first letter ("L"). nullopt for other names.
[[nodiscard]] std::optional<CodePointSet> set_of_category(std::string_view name);

}  // namespace d9d::detail
