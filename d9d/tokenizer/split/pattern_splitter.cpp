#include "d9d/tokenizer/split/pattern_splitter.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "d9d/tokenizer/split/classified_text.h"
#include "d9d/tokenizer/split/regex.h"

namespace d9d::detail {
namespace {

struct Piece {
  Span span;
  bool is_match;
};

// Divides the whole text into matches and the text between them.
std::vector<Piece> pieces_of(const std::vector<Span>& matches, std::size_t size, bool invert) {
  std::vector<Piece> pieces;
  std::uint32_t covered = 0;
  for (const Span& match : matches) {
    if (covered != match.begin) pieces.push_back({{covered, match.begin}, invert});
    pieces.push_back({match, !invert});
    covered = match.end;
  }
  if (covered != size) pieces.push_back({{covered, static_cast<std::uint32_t>(size)}, invert});
  return pieces;
}

// Joins each piece to the one before it if `joins(before, piece)` is true.
template <class Joins>
std::vector<Span> join(const std::vector<Piece>& pieces, const Joins& joins) {
  std::vector<Span> words;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0 && joins(pieces[i - 1], pieces[i])) {
      words.back().end = pieces[i].span.end;
    } else {
      words.push_back(pieces[i].span);
    }
  }
  return words;
}

std::vector<Span> words_of(const std::vector<Piece>& pieces, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kContiguous:
      return join(pieces, [](const Piece& a, const Piece& b) { return a.is_match == b.is_match; });
    case SplitBehavior::kMergedWithPrevious:
      return join(pieces, [](const Piece& a, const Piece& b) { return !a.is_match && b.is_match; });
    case SplitBehavior::kMergedWithNext:
      return join(pieces, [](const Piece& a, const Piece& b) { return a.is_match && !b.is_match; });
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      break;
  }
  std::vector<Span> words;
  for (const Piece& piece : pieces) {
    if (behavior == SplitBehavior::kIsolated || !piece.is_match) words.push_back(piece.span);
  }
  return words;
}

// `Finder` is a function (text, matches) that appends the matches in order; a match may be empty.
template <class Finder>
class PatternSplitter final : public Splitter {
 public:
  PatternSplitter(Finder finder, SplitBehavior behavior, bool invert)
      : finder_(std::move(finder)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view text, std::uint32_t shift, std::vector<Span>& words) const override {
    std::vector<Span> matches;
    finder_(text, matches);
    for (const Span& word : words_of(pieces_of(matches, text.size(), invert_), behavior_)) {
      if (word.begin != word.end) words.push_back({word.begin + shift, word.end + shift});
    }
  }

 private:
  Finder finder_;
  SplitBehavior behavior_;
  bool invert_;
};

template <class Finder>
std::unique_ptr<Splitter> make_splitter(Finder finder, SplitBehavior behavior, bool invert) {
  return std::make_unique<PatternSplitter<Finder>>(std::move(finder), behavior, invert);
}

}  // namespace

std::unique_ptr<Splitter> literal_splitter(std::string literal, SplitBehavior behavior, bool invert) {
  const auto find = [literal = std::move(literal)](std::string_view text, std::vector<Span>& matches) {
    if (literal.empty()) {  // an empty match before each character, and at the end
      for (std::size_t i = 0; i <= text.size(); ++i) {
        const auto position = static_cast<std::uint32_t>(i);
        if (i == text.size() || begins_character(text[i])) matches.push_back({position, position});
      }
      return;
    }
    for (std::size_t at = text.find(literal); at != std::string_view::npos;
         at = text.find(literal, at + literal.size())) {
      matches.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + literal.size())});
    }
  };
  return make_splitter(find, behavior, invert);
}

std::unique_ptr<Splitter> digits_splitter(SplitBehavior behavior) {
  const auto find = [](std::string_view text, std::vector<Span>& matches) {
    const ClassifiedText classified(text);
    for (std::size_t position = 0; position < text.size();) {
      const auto next = classified.at(position);
      if ((next.bits & kNumber) != 0) {
        matches.push_back({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(next.end)});
      }
      position = next.end;
    }
  };
  return make_splitter(find, behavior, false);
}

std::unique_ptr<Splitter> regex_splitter(std::string_view pattern, SplitBehavior behavior, bool invert,
                                         const std::string& place) {
  const auto find = [regex = Regex(pattern, place)](std::string_view text, std::vector<Span>& matches) {
    regex.find_all(text, matches);
  };
  return make_splitter(find, behavior, invert);
}

}  // namespace d9d::detail
