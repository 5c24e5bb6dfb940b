// Finds added tokens, such as "<|im_end|>", in a text before it is split into words.
//
// Example
//   const AddedTokenMatcher matcher(tokens);
//   std::vector<AddedMatch> matches;
//   matcher.find(text, SpecialTokens::kRecognize, matches);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "d9d/tokenizer/bpe/merge_table.h"

namespace d9d::detail {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool single_word = false;  // not matched within a word
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = false;   // the normalised content is searched for in normalised text
  bool special = false;      // omitted from decoded text if skip_special_tokens is set
};

struct AddedMatch {
  TokenId id;
  std::size_t begin;  // in bytes; the match includes white space that the token takes
  std::size_t end;
};

enum class SpecialTokens : std::uint8_t {
  kRecognize,
  kAsText,  // special tokens in the text are treated as ordinary text
};

// Finds the leftmost and then the longest token, and continues after it.
class AddedTokenMatcher {
 public:
  // `contents[i]`: the text that is matched as tokens[i]. All contents are different, and none is empty.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);

  // Replaces `matches`. `text` is valid UTF-8. If a token includes white space that is the next token itself, the two
  // matches overlap, as in Hugging Face's tokenizers.
  void find(std::string_view text, SpecialTokens special_tokens, std::vector<AddedMatch>& matches) const;

  [[nodiscard]] bool is_empty() const { return tokens_.empty(); }

 private:
  struct Found {
    std::size_t token;  // index
    std::size_t end;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  [[nodiscard]] std::uint32_t child(std::uint32_t node, char byte) const;
  // The longest token that begins at `begin`; `token` is kNone if there is none.
  [[nodiscard]] Found longest_at(std::string_view text, std::size_t begin) const;
  [[nodiscard]] std::size_t next_candidate(std::string_view text, std::size_t begin) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::uint32_t> token_of_node_;                   // a trie of bytes; node 0 is the root
  std::unordered_map<std::uint64_t, std::uint32_t> children_;  // by node << 8 | byte
  std::vector<bool> begins_token_;                             // by byte
  std::string first_bytes_;
};

}  // namespace d9d::detail
