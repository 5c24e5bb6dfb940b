#include "d9d/tokenizer/split/code_point_set.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace d9d::detail {
namespace {

constexpr std::array<std::string_view, kNumGeneralCategories> kCategoryNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

}  // namespace

void CodePointSet::add(char32_t begin, char32_t end) {
  if (begin >= end) return;
  auto first = std::ranges::lower_bound(ranges_, begin, {}, &Range::end);  // first range that may touch
  auto last = first;
  while (last != ranges_.end() && last->begin <= end) {
    begin = std::min(begin, last->begin);
    end = std::max(end, last->end);
    ++last;
  }
  first = ranges_.erase(first, last);
  ranges_.insert(first, {begin, end});
}

void CodePointSet::add(const CodePointSet& other) {
  for (const Range& range : other.ranges_) add(range.begin, range.end);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  char32_t covered = 0;
  for (const Range& range : ranges_) {
    result.add(covered, range.begin);
    covered = range.end;
  }
  result.add(covered, kNumCodePoints);
  return result;
}

bool CodePointSet::contains(char32_t code_point) const {
  const auto range = std::ranges::upper_bound(ranges_, code_point, {}, &Range::end);
  return range != ranges_.end() && range->begin <= code_point;
}

CodePointSet set_of_class(ClassBits bits) {
  CodePointSet set;
  char32_t begin = 0;
  bool is_in = false;
  for (char32_t code = 0; code <= kNumCodePoints; ++code) {
    const bool is_member = code < kNumCodePoints && (code_point_classes()[code] & bits) != 0;
    if (is_member && !is_in) begin = code;
    if (!is_member && is_in) set.add(begin, code);
    is_in = is_member;
  }
  return set;
}

CodePointSet pattern_word_characters() {
  CodePointSet others = set_of_class(kWord).complement();
  others.add(0x200C, 0x200E);
  CodePointSet words = others.complement();
  words.add(0xB2, 0xB4);
  words.add(0xB9, 0xBA);
  words.add(0xBC, 0xBF);
  return words;
}

std::optional<CodePointSet> set_of_category(std::string_view name) {
  CodePointSet set;
  for (const CategoryRun& run : category_runs()) {
    const std::string_view category = kCategoryNames[static_cast<std::size_t>(run.category)];
    const bool is_named = name == category || (name.size() == 1 && category.starts_with(name));
    if (is_named) set.add(run.begin, run.end);
  }
  if (set.ranges().empty()) return std::nullopt;
  return set;
}

}  // namespace d9d::detail
