// How heads are cut for threads: each turns two pieces of some channels that turn with each other, a slot.
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

// Slots of a head: the pairs of turning pieces of `width` channels, then pairs of those that pass through.
[[nodiscard]] inline std::int64_t num_slots(std::int64_t head_dim, std::int64_t rotary_dim, std::int64_t width) {
  const std::int64_t num_passing = (head_dim - rotary_dim + width - 1) / width;
  return rotary_dim / 2 / width + (num_passing + 1) / 2;
}

}  // namespace d9d::kernels::detail
