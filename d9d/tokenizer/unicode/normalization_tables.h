// The properties of code points that normalisation needs. Hangul syllables are computed (Unicode, section 3.12).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "d9d/tokenizer/unicode/normalization.h"
#include "d9d/tokenizer/unicode/two_stage_table.h"

namespace d9d::detail {

class NormalizationTables {
 public:
  NormalizationTables();

  [[nodiscard]] std::uint8_t combining_class(char32_t code_point) const { return classes_[code_point]; }

  // Appends the complete decomposition: nothing in the result decomposes further.
  void append_decomposition(NormalForm form, char32_t code_point, std::u32string& result) const;

  // The code point to which NFC composes two consecutive code points; 0 if they do not compose.
  [[nodiscard]] char32_t compose(char32_t first, char32_t second) const;

  // Whether a form never changes the code point, whatever precedes it.
  [[nodiscard]] bool is_inert(NormalForm form, char32_t code_point) const {
    return (inert_[code_point] >> static_cast<int>(form) & 1) != 0;
  }

 private:
  struct Decomposition {
    std::u32string canonical;
    std::u32string compatible;
  };

  std::unordered_map<char32_t, Decomposition> decompositions_;
  std::unordered_map<std::uint64_t, char32_t> compositions_;  // by first << 32 | second
  TwoStageTable<std::uint8_t> classes_;
  TwoStageTable<std::uint8_t> inert_;  // a bit for each form
};

// The tables are built by the first call.
[[nodiscard]] const NormalizationTables& normalization_tables();

}  // namespace d9d::detail
