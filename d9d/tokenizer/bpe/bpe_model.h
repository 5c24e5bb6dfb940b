// A byte-level byte-pair encoding (BPE) model, which turns words into tokens.
//
// Example
//   std::vector<TokenId> ids;
//   model.encode_word(" tokenizer", scratch, ids);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "d9d/tokenizer/bpe/merge_table.h"

namespace d9d::detail {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

// Working memory of encode_word(); each thread needs one.
struct MergeScratch {
  struct Symbol {
    TokenId token;
    std::uint32_t rank;  // rank of the merge with the next symbol
    std::int32_t previous;
    std::int32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;
    TokenId token;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

class BpeModel {
 public:
  // `vocabulary`: tokens in the byte alphabet, with unique ids. It must have a token for each byte of ASCII text; other
  // bytes may lack one. `merges`: in order of rank; both tokens of a merge and their concatenation must be tokens of
  // the vocabulary. Throws ConfigError, which begins with `where`.
  BpeModel(StringMap<TokenId> vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
           bool ignore_merges, const std::string& where);

  // Appends the tokens of `word` to `ids`. Throws ConfigError for a byte without a token.
  void encode_word(std::string_view word, MergeScratch& scratch, std::vector<TokenId>& ids) const;

  [[nodiscard]] const StringMap<TokenId>& vocabulary() const { return vocabulary_; }

 private:
  void check_bytes(std::string_view word) const;
  void merge_short(std::string_view word, std::vector<TokenId>& ids) const;
  void merge_long(std::string_view word, MergeScratch& scratch, std::vector<TokenId>& ids) const;
  void push_candidate(MergeScratch& scratch, std::int32_t left, std::int32_t right) const;

  StringMap<TokenId> vocabulary_;
  StringMap<TokenId> whole_words_;  // by bytes; empty unless ignore_merges is set
  std::array<TokenId, 256> byte_tokens_ = {};
  std::array<bool, 256> lacks_token_ = {};
  bool lacks_any_ = false;  // whether any byte that UTF-8 uses has no token
  MergeTable merges_;
};

}  // namespace d9d::detail
