// A regular expression over code points, in the syntax of Oniguruma that published tokenizers use, matched by PCRE2.
//
// Example
//   const Regex regex(R"(\p{N}{1,3}|\s+(?!\S))", "tokenizer.json: ");
//   std::vector<Span> matches;
//   regex.find_all("in 2024", matches);
//
// PCRE2 does not handle Unicode here. The sets of the pattern divide all code points into at most 256 kinds; a text
// becomes a string of kinds with one byte per character, and the pattern becomes a pattern over such bytes. So sets
// follow Unicode 16 (PCRE2 10.42 knows fewer letters), and matching is as fast as for ASCII.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/tokenizer/split/splitter.h"
#include "d9d/tokenizer/unicode/two_stage_table.h"

namespace d9d::detail {

class Regex {
 public:
  // Throws ConfigError, which begins with `place`, for a construct that is not supported: references, recursion,
  // options except (?i:...) around ASCII text and sets, properties except general categories, word boundaries, nested
  // sets.
  Regex(std::string_view pattern, const std::string& place);

  // Appends the matches in `text` (valid UTF-8) in order; they do not overlap, and some may be empty. Thread-safe.
  // Throws ConfigError if the pattern needs too many steps.
  void find_all(std::string_view text, std::vector<Span>& matches) const;

 private:
  struct Program;  // PCRE2's code

  std::shared_ptr<const Program> program_;
  std::shared_ptr<const TwoStageTable<std::uint8_t>> kinds_;
  std::string place_;
};

}  // namespace d9d::detail
