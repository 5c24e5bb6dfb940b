#include "d9d/tokenizer/bpe/word_cache.h"

#include <algorithm>
#include <utility>

namespace d9d::detail {

void WordCache::insert(const Key& key, std::size_t index) {
  const auto empty_slot = [&](const Key& wanted) {
    std::size_t slot = slot_of(wanted);
    while (slots_[slot].num_ids != 0) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  };
  if (2 * num_words_ >= slots_.size()) {
    const std::vector<Slot> old = std::exchange(slots_, {});
    slots_.resize(std::min(2 * old.size(), kMostSlots));
    num_words_ = 0;
    if (old.size() < kMostSlots) {
      for (const Slot& slot : old) {
        if (slot.num_ids == 0) continue;
        slots_[empty_slot(slot.key)] = slot;
        ++num_words_;
      }
    }
    index = empty_slot(key);
  }
  Slot& slot = slots_[index];
  slot.key = key;
  slot.num_ids = static_cast<std::uint32_t>(computed_.size());
  if (computed_.size() <= kMostIds) std::copy(computed_.begin(), computed_.end(), slot.ids.begin());
  ++num_words_;
}

}  // namespace d9d::detail
