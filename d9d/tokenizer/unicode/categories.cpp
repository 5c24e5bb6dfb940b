#include "d9d/tokenizer/unicode/categories.h"

#include <algorithm>

namespace d9d::detail {
namespace {

constexpr std::uint32_t kCategoryRuns[] = {
#include "d9d/tokenizer/unicode/categories.inc"
};

bool is_between(GeneralCategory category, GeneralCategory first, GeneralCategory last) {
  return category >= first && category <= last;
}

ClassBits bits_of(GeneralCategory category) {
  using enum GeneralCategory;
  const bool is_mark = is_between(category, Mn, Me);
  const bool has_no_case = category == Lm || category == Lo || is_mark;
  ClassBits bits = 0;
  if (is_between(category, Lu, Lo)) bits |= kLetter | kWord;
  if (is_between(category, Nd, No)) bits |= kNumber;
  if (category == Nd || category == Nl || category == Pc) bits |= kWord;
  if (is_mark) bits |= kMark | kWord;
  if (has_no_case || category == Lu || category == Lt) bits |= kUpperSide;
  if (has_no_case || category == Ll) bits |= kLowerSide;
  if (is_between(category, Zs, Zp)) bits |= kSpace;
  return bits;
}

// Class bits that do not follow from the general category.
struct Addition {
  char32_t first;
  char32_t last;
  ClassBits bits;
};
constexpr Addition kAdditions[] = {
    {0x09, 0x0D, kSpace},       {0x85, 0x85, kSpace},                                 // controls that are White_Space
    {U'\n', U'\n', kLineBreak}, {U'\r', U'\r', kLineBreak}, {0x200C, 0x200D, kWord},  // Join_Control
    {0x24B6, 0x24E9, kWord},    {0x1F130, 0x1F149, kWord},                            // symbols that are Alphabetic
    {0x1F150, 0x1F169, kWord},  {0x1F170, 0x1F189, kWord},
};

}  // namespace

const std::vector<CategoryRun>& category_runs() {
  static const auto kRuns = [] {
    std::vector<CategoryRun> runs;
    for (const std::uint32_t number : kCategoryRuns) {
      if (!runs.empty()) runs.back().end = number >> 5;
      runs.push_back({number >> 5, kNumCodePoints, static_cast<GeneralCategory>(number & 31)});
    }
    return runs;
  }();
  return kRuns;
}

const TwoStageTable<ClassBits>& code_point_classes() {
  static const auto kClasses = [] {
    std::vector<ClassBits> flat(kNumCodePoints);
    for (const CategoryRun& run : category_runs()) {
      std::fill(flat.begin() + run.begin, flat.begin() + run.end, bits_of(run.category));
    }
    for (const Addition& addition : kAdditions) {
      for (char32_t code = addition.first; code <= addition.last; ++code) flat[code] |= addition.bits;
    }
    return TwoStageTable<ClassBits>(flat);
  }();
  return kClasses;
}

}  // namespace d9d::detail
