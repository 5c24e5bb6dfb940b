// Caches the tokens of words that were encoded before. Most words are short: words of at most 15 bytes and 3 tokens
// take half a cache line each, in a table with open addressing; the others are in a map. The size is bounded: when the
// table or the map is full, it is cleared.
//
// Example
//   const std::span<const TokenId> ids = cache.find(word, [&](std::vector<TokenId>& ids) { ... });   // computed if new
// An object may be used by one thread only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "d9d/tokenizer/bpe/bpe_model.h"

namespace d9d::detail {

class WordCache {
 public:
  WordCache() : slots_(kFirstSlots) {}

  // `readable`: how many bytes may be read from the begin of `word` on, at least its length. `compute(ids)` appends the
  // tokens of a word that is not in the cache. The result is valid until the next call.
  template <class Compute>
  [[nodiscard]] std::span<const TokenId> find(std::string_view word, std::size_t readable, const Compute& compute) {
    if (word.size() > kLongestKey) return find_long(word, compute);
    const Key key = key_of(word, readable);
    std::size_t index = slot_of(key);
    while (slots_[index].num_ids != 0) {
      if (slots_[index].key == key) {
        if (slots_[index].num_ids > kMostIds) return find_long(word, compute);
        return {slots_[index].ids.data(), slots_[index].num_ids};
      }
      index = (index + 1) & (slots_.size() - 1);
    }
    computed_.clear();
    compute(computed_);
    insert(key, index);
    if (computed_.size() > kMostIds) return find_long(word, [&](std::vector<TokenId>& ids) { ids = computed_; });
    return computed_;
  }

 private:
  static constexpr std::size_t kLongestKey = 15;
  static constexpr std::size_t kMostIds = 3;
  static constexpr std::size_t kFirstSlots = std::size_t{1} << 12;
  static constexpr std::size_t kMostSlots = std::size_t{1} << 17;
  static constexpr std::size_t kMostLongWords = std::size_t{1} << 15;
  static constexpr std::size_t kLongestWord = 256;

  struct Key {  // the bytes of a word, padded with zeros, and its length
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Slot {
    Key key;
    std::array<TokenId, kMostIds> ids = {};
    std::uint32_t num_ids = 0;  // 0: the slot is empty; more than kMostIds: they are in the map
  };

  static Key key_of(std::string_view word, std::size_t readable) {
    std::array<std::uint64_t, 2> halves = {};
    const std::size_t length = word.size();
    if (readable >= sizeof halves) {
      std::memcpy(halves.data(), word.data(), sizeof halves);
      if (length < 8) {
        halves = {halves[0] & ((std::uint64_t{1} << 8 * length) - 1), 0};
      } else {
        halves[1] &= (std::uint64_t{1} << 8 * (length - 8)) - 1;
      }
    } else {
      std::memcpy(halves.data(), word.data(), length);
    }
    return {halves[0], halves[1] | std::uint64_t{length} << 56};
  }
  [[nodiscard]] std::size_t slot_of(const Key& key) const {
    const std::uint64_t mixed = (key.low ^ std::rotl(key.high * 0x9E3779B97F4A7C15, 32)) * 0xD6E8FEB86659FD93;
    return static_cast<std::size_t>(mixed ^ mixed >> 32) & (slots_.size() - 1);
  }

  template <class Compute>
  std::span<const TokenId> find_long(std::string_view word, const Compute& compute) {
    if (const auto entry = long_words_.find(word); entry != long_words_.end()) return entry->second;
    std::vector<TokenId> ids;
    compute(ids);
    if (word.size() > kLongestWord) return computed_ = std::move(ids);
    if (long_words_.size() == kMostLongWords) long_words_.clear();
    return long_words_.emplace(word, std::move(ids)).first->second;
  }
  void insert(const Key& key, std::size_t index);  // stores computed_ at the empty slot `index`

  std::vector<Slot> slots_;
  std::size_t num_words_ = 0;
  StringMap<std::vector<TokenId>> long_words_;
  std::vector<TokenId> computed_;
};

}  // namespace d9d::detail
