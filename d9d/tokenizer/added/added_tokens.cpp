#include "d9d/tokenizer/added/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "d9d/tokenizer/split/classified_text.h"

namespace d9d::detail {
namespace {

bool has_class(char32_t code_point, ClassBits bits) { return (code_point_classes()[code_point] & bits) != 0; }

// Whether text[begin, end) does not touch a word character before or after it.
bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
  const bool follows_word = begin > 0 && has_class(code_point_before(text, begin).value, kWord);
  const bool precedes_word = end < text.size() && has_class(code_point_at(text, end).value, kWord);
  return !follows_word && !precedes_word;
}

std::size_t begin_of_spaces(std::string_view text, std::size_t end) {
  while (end > 0) {
    const CodePoint point = code_point_before(text, end);
    if (!has_class(point.value, kSpace)) break;
    end -= point.length;
  }
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& contents)
    : tokens_(std::move(tokens)), token_of_node_(1, kNone), begins_token_(256) {
  for (std::size_t i = 0; i < contents.size(); ++i) {
    std::uint32_t node = 0;
    for (const char byte : contents[i]) {
      const std::uint64_t key = std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
      const auto [entry, is_new] = children_.emplace(key, token_of_node_.size());
      if (is_new) token_of_node_.push_back(kNone);
      node = entry->second;
    }
    token_of_node_[node] = static_cast<std::uint32_t>(i);
    const auto first = static_cast<unsigned char>(contents[i].front());
    if (!begins_token_[first]) first_bytes_.push_back(contents[i].front());
    begins_token_[first] = true;
  }
}

std::uint32_t AddedTokenMatcher::child(std::uint32_t node, char byte) const {
  const auto entry = children_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(byte));
  return entry == children_.end() ? kNone : entry->second;
}

AddedTokenMatcher::Found AddedTokenMatcher::longest_at(std::string_view text, std::size_t begin) const {
  Found found = {kNone, begin};
  std::uint32_t node = 0;
  for (std::size_t position = begin; position < text.size();) {
    node = child(node, text[position++]);
    if (node == kNone) break;
    if (token_of_node_[node] != kNone) found = {token_of_node_[node], position};
  }
  return found;
}

std::size_t AddedTokenMatcher::next_candidate(std::string_view text, std::size_t begin) const {
  if (first_bytes_.size() == 1 && begin < text.size()) {
    const void* found = std::memchr(text.data() + begin, first_bytes_.front(), text.size() - begin);
    return found == nullptr ? text.size() : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  while (begin < text.size() && !begins_token_[static_cast<unsigned char>(text[begin])]) ++begin;
  return begin;
}

void AddedTokenMatcher::find(std::string_view text, SpecialTokens special_tokens,
                             std::vector<AddedMatch>& matches) const {
  matches.clear();
  if (tokens_.empty()) return;
  std::size_t covered = 0;  // end of the last match
  for (std::size_t position = next_candidate(text, 0); position < text.size();
       position = next_candidate(text, position)) {
    const Found found = longest_at(text, position);
    if (found.token == kNone) {
      ++position;
      continue;
    }
    std::size_t begin = std::exchange(position, found.end);
    std::size_t end = found.end;
    const AddedToken& token = tokens_[found.token];
    if (token.special && special_tokens == SpecialTokens::kAsText) continue;
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(begin_of_spaces(text, begin), covered);
    if (token.rstrip) end = ClassifiedText(text).skip(end, kSpace);
    if (begin >= end) continue;  // lies within the white space that the previous match includes
    matches.push_back({token.id, begin, end});
    covered = end;
  }
}

}  // namespace d9d::detail
