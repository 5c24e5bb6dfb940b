// A stage of a pre-tokenizer: splits a text into words, which the model then encodes one by one.
//
// Example
//   std::vector<Span> words;
//   splitter.split(text, 0, words);   // words[i]: text[begin, end)
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace d9d::detail {

struct Span {
  std::uint32_t begin;
  std::uint32_t end;  // exclusive

  friend bool operator==(const Span&, const Span&) = default;
};

class Splitter {
 public:
  virtual ~Splitter() = default;

  // Appends the words of `text` (valid UTF-8) to `words`, with `shift` added to their positions; no word is empty.
  virtual void split(std::string_view text, std::uint32_t shift, std::vector<Span>& words) const = 0;
};

// Stages that run one after another: each splits the words of the stage before it.
class SplitterChain {
 public:
  void add(std::unique_ptr<Splitter> splitter) { stages_.push_back(std::move(splitter)); }

  // Replaces `words`. `scratch` is working memory for the words of intermediate stages.
  void split(std::string_view text, std::vector<Span>& words, std::vector<Span>& scratch) const;

 private:
  std::vector<std::unique_ptr<Splitter>> stages_;
};

}  // namespace d9d::detail
