#include "d9d/tokenizer/bpe/merge_table.h"

#include <algorithm>
#include <bit>

namespace d9d::detail {

MergeTable::MergeTable(std::size_t num_merges) {
  const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(2 * num_merges, 16));
  shift_ = 64 - std::countr_zero(num_slots);
  mask_ = num_slots - 1;
  slots_.resize(num_slots);
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t pair = std::uint64_t{left} << 32 | right;
  std::size_t slot = slot_of(pair);
  while (slots_[slot].pair != kEmpty && slots_[slot].pair != pair) slot = (slot + 1) & mask_;
  slots_[slot] = {pair, merge};
}

}  // namespace d9d::detail
