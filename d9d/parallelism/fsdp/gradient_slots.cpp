#include "d9d/parallelism/fsdp/gradient_slots.h"

#include <algorithm>
#include <memory>

#include <ATen/ATen.h>

namespace d9d {

void GradientSlots::set_memory(const Communicator& ranks, const at::Tensor& memory) {
  memory_[&ranks] = memory.view({size(), memory.numel() / size()});
}

void GradientSlots::take(std::size_t unit) {
  if (slots_.empty() || std::ranges::find(slots_, unit, &Slot::unit) != slots_.end()) return;
  Slot& next = slots_[next_];
  if (next.unit) return;
  next.unit = unit;
  next_ = (next_ + 1) % slots_.size();
}

GradientSlots::Allocate GradientSlots::memory_of(std::size_t unit) const {
  const auto slot = std::ranges::find(slots_, unit, &Slot::unit);
  if (slot == slots_.end()) return {};
  slot->reduced.wait();
  std::map<const Communicator*, at::Tensor> unused;
  for (const auto& [ranks, memory] : memory_) unused[ranks] = memory.select(0, slot - slots_.begin());
  return [unused](const Communicator& ranks, std::int64_t num_bytes) mutable {
    at::Tensor& rest = unused.at(&ranks);
    const at::Tensor part = rest.narrow(0, 0, num_bytes);
    rest = rest.narrow(0, num_bytes, rest.numel() - num_bytes);
    return part;
  };
}

void GradientSlots::give_back(std::size_t unit, const StreamEvent& reduced) {
  const auto slot = std::ranges::find(slots_, unit, &Slot::unit);
  if (slot != slots_.end()) *slot = {.unit = std::nullopt, .reduced = reduced};
}

void GradientSlots::clear() {
  for (Slot& slot : slots_) slot.unit.reset();
}

void GradientSlots::abandon() {
  clear();
  next_ = 0;
}

}  // namespace d9d
