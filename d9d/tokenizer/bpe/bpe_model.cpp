#include "d9d/tokenizer/bpe/bpe_model.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/tokenizer/bpe/byte_alphabet.h"

namespace d9d::detail {
namespace {

constexpr std::size_t kShortWord = 48;  // bytes; for longer words a heap is faster than searching all pairs

// Whether a byte can occur in UTF-8.
bool occurs_in_utf8(unsigned byte) { return byte != 0xC0 && byte != 0xC1 && byte < 0xF5; }

// A vocabulary that lacks one of these bytes is not byte-level, or is damaged. Control characters may be missing, as in
// SmolLM's.
bool is_ascii_text(unsigned byte) {
  return byte == '\t' || byte == '\n' || byte == '\r' || (byte >= 0x20 && byte < 0x7F);
}

bool comes_later(const MergeScratch::Candidate& a, const MergeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

BpeModel::BpeModel(StringMap<TokenId> vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
                   bool ignore_merges, const std::string& where)
    : vocabulary_(std::move(vocabulary)), merges_(merges.size()) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string symbol = to_byte_alphabet(std::string(1, static_cast<char>(byte)));
    const auto entry = vocabulary_.find(symbol);
    D9D_CHECK(entry != vocabulary_.end() || !is_ascii_text(byte), ConfigError, where,
              "vocab: expected a token for every ", "byte of ASCII text, got none for byte ", byte, " ('", symbol,
              "'): text with it would be lost. Train with the initial ", "alphabet of ByteLevel.");
    lacks_token_[byte] = entry == vocabulary_.end();
    lacks_any_ |= lacks_token_[byte] && occurs_in_utf8(byte);
    byte_tokens_[byte] = lacks_token_[byte] ? 0 : entry->second;
  }
  const auto id_of = [&](const std::string& token, std::size_t merge) {
    const auto entry = vocabulary_.find(token);
    D9D_CHECK(entry != vocabulary_.end(), ConfigError, where, "merges.", merge,
              ": expected tokens of the vocabulary, got '", token, "', which is none. The file is damaged.");
    return entry->second;
  };
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    const Merge merge = {static_cast<std::uint32_t>(i), id_of(left + right, i)};
    merges_.set(id_of(left, i), id_of(right, i), merge);
  }
  if (!ignore_merges) return;
  for (const auto& [token, id] : vocabulary_) {
    if (auto bytes = from_byte_alphabet(token)) whole_words_.emplace(std::move(*bytes), id);
  }
}

void BpeModel::encode_word(std::string_view word, MergeScratch& scratch, std::vector<TokenId>& ids) const {
  if (!whole_words_.empty()) {
    if (const auto entry = whole_words_.find(word); entry != whole_words_.end()) return ids.push_back(entry->second);
  }
  if (lacks_any_) check_bytes(word);
  return word.size() < kShortWord ? merge_short(word, ids) : merge_long(word, scratch, ids);
}

void BpeModel::check_bytes(std::string_view word) const {
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    D9D_CHECK(!lacks_token_[byte], ConfigError,
              "[tokenizer] expected a text of bytes that the vocabulary has, got byte ", int{byte},
              ", for which it has no token: the text would lose it. Take it out of the text.");
  }
}

// Repeatedly applies the merge of the lowest rank, found by a search through all pairs.
void BpeModel::merge_short(std::string_view word, std::vector<TokenId>& ids) const {
  struct Symbol {
    TokenId token;
    Merge merge;  // merge with the next symbol
  };
  std::array<Symbol, kShortWord> symbols;
  std::size_t count = word.size();
  const auto update = [&](std::size_t i) {
    symbols[i].merge = i + 1 < count ? merges_.find(symbols[i].token, symbols[i + 1].token) : Merge{kNoMerge, 0};
  };
  for (std::size_t i = 0; i < count; ++i) symbols[i].token = byte_tokens_[static_cast<unsigned char>(word[i])];
  for (std::size_t i = 0; i < count; ++i) update(i);
  while (true) {
    const auto begin = symbols.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    const auto first =
        std::min_element(begin, end, [](const Symbol& a, const Symbol& b) { return a.merge.rank < b.merge.rank; });
    if (first == end || first->merge.rank == kNoMerge) break;
    first->token = first->merge.token;
    std::copy(first + 2, end, first + 1);
    --count;
    const auto i = static_cast<std::size_t>(first - begin);
    update(i);
    if (i > 0) update(i - 1);
  }
  for (std::size_t i = 0; i < count; ++i) ids.push_back(symbols[i].token);
}

void BpeModel::push_candidate(MergeScratch& scratch, std::int32_t left, std::int32_t right) const {
  const Merge merge = merges_.find(scratch.symbols[left].token, scratch.symbols[right].token);
  scratch.symbols[left].rank = merge.rank;
  if (merge.rank == kNoMerge) return;
  scratch.heap.push_back({merge.rank, left, merge.token});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
}

// Uses a linked list of symbols and a heap of candidate merges. A candidate is skipped if its pair has changed since it
// was added.
void BpeModel::merge_long(std::string_view word, MergeScratch& scratch, std::vector<TokenId>& ids) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<std::int32_t>(word.size());
  for (std::int32_t i = 0; i < count; ++i) {
    const TokenId token = byte_tokens_[static_cast<unsigned char>(word[static_cast<std::size_t>(i)])];
    symbols.push_back({token, kNoMerge, i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) push_candidate(scratch, i, i + 1);
  while (!heap.empty()) {
    const MergeScratch::Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    heap.pop_back();
    auto& left = symbols[best.position];
    if (left.rank != best.rank || left.next < 0) continue;
    auto& right = symbols[left.next];
    left.token = best.token;
    left.next = right.next;
    left.rank = kNoMerge;
    right.rank = kNoMerge;  // merged into the left one, so its candidates are outdated
    if (left.next >= 0) {
      symbols[left.next].previous = best.position;
      push_candidate(scratch, best.position, left.next);
    }
    if (left.previous >= 0) push_candidate(scratch, left.previous, best.position);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].token);
}

}  // namespace d9d::detail
