// The merges of a byte-pair encoding: maps a pair of tokens to the merged token and the rank of the merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace d9d::detail {

using TokenId = std::uint32_t;

struct Merge {
  std::uint32_t rank;  // the lowest rank is applied first; kNoMerge: the pair does not merge
  TokenId token;
};
constexpr std::uint32_t kNoMerge = std::numeric_limits<std::uint32_t>::max();

// A hash table with open addressing.
class MergeTable {
 public:
  explicit MergeTable(std::size_t num_merges);

  // Adds a merge, or replaces the merge of a pair that is already in the table.
  void set(TokenId left, TokenId right, Merge merge);

  [[nodiscard]] Merge find(TokenId left, TokenId right) const {
    const std::uint64_t pair = std::uint64_t{left} << 32 | right;
    for (std::size_t slot = slot_of(pair);; slot = (slot + 1) & mask_) {
      if (slots_[slot].pair == pair) return slots_[slot].merge;
      if (slots_[slot].pair == kEmpty) return {kNoMerge, 0};
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = std::numeric_limits<std::uint64_t>::max();
  struct Slot {
    std::uint64_t pair = kEmpty;
    Merge merge = {};
  };
  [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair ^ pair >> 29) * 0x9E3779B97F4A7C15 >> shift_);
  }

  int shift_;
  std::size_t mask_;
  std::vector<Slot> slots_;
};

}  // namespace d9d::detail
