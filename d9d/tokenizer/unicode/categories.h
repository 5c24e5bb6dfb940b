// The classes of code points, as in the regular expressions of Hugging Face's tokenizers (0.23): general categories of
// Unicode 16.
//
// Example
//   const auto& classes = code_point_classes();
//   if ((classes[U'é'] & kLetter) != 0) ...
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/tokenizer/unicode/two_stage_table.h"

namespace d9d::detail {

// In the order that tools/make_unicode_tables uses.
enum class GeneralCategory : std::uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Cs,
  Co,
  Cn
};
constexpr int kNumGeneralCategories = 30;

struct CategoryRun {
  char32_t begin;
  char32_t end;  // exclusive
  GeneralCategory category;
};

// Runs that cover all code points, in order.
[[nodiscard]] const std::vector<CategoryRun>& category_runs();

// The character classes of the published split patterns, as bits.
using ClassBits = std::uint8_t;
constexpr ClassBits kLetter = 1;      // \p{L}
constexpr ClassBits kNumber = 2;      // \p{N}, which is also what Rust's is_numeric() accepts
constexpr ClassBits kSpace = 4;       // \s, the property White_Space
constexpr ClassBits kMark = 8;        // \p{M}
constexpr ClassBits kUpperSide = 16;  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
constexpr ClassBits kLowerSide = 32;  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
constexpr ClassBits kLineBreak = 64;  // [\r\n]
constexpr ClassBits kWord = 128;      // \w of Rust's regex crate

// The table is built by the first call.
[[nodiscard]] const TwoStageTable<ClassBits>& code_point_classes();

}  // namespace d9d::detail
