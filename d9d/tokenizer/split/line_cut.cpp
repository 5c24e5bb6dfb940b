#include "d9d/tokenizer/split/line_cut.h"

#include <algorithm>

#include "d9d/tokenizer/split/classified_text.h"
#include "d9d/tokenizer/split/published_patterns.h"

namespace d9d::detail {

LineCut line_cut_of(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return LineCut::kBeforeBreak;
  return published_splitter(pattern) != nullptr ? LineCut::kBehindBreak : LineCut::kNone;
}

std::size_t next_line_cut(std::string_view text, std::size_t from, std::size_t to, LineCut cut) {
  if (cut == LineCut::kNone) return to;
  const ClassifiedText classified(text);
  const std::size_t behind = cut == LineCut::kBehindBreak ? 1 : 0;
  for (std::size_t at = from - std::min(from, behind); at + behind < to; ++at) {
    at = text.find('\n', at);
    if (at >= to || at + behind >= to) return to;
    if ((classified.bits(at + 1) & kLetter) != 0) return at + behind;
  }
  return to;
}

}  // namespace d9d::detail
