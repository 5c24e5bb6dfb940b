#include "d9d/tokenizer/split/splitter.h"

#include <utility>

namespace d9d::detail {

void SplitterChain::split(std::string_view text, std::vector<Span>& words, std::vector<Span>& scratch) const {
  words.clear();
  if (text.empty()) return;
  if (stages_.empty()) return words.push_back({0, static_cast<std::uint32_t>(text.size())});
  stages_.front()->split(text, 0, words);
  for (std::size_t i = 1; i < stages_.size(); ++i) {
    std::swap(words, scratch);
    words.clear();
    for (const Span& span : scratch)
      stages_[i]->split(text.substr(span.begin, span.end - span.begin), span.begin, words);
  }
}

}  // namespace d9d::detail
