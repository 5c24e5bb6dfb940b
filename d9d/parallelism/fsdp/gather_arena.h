// The memory of gathered units, allocated once, at first use. Consecutive units use opposite ends, so that a unit and
// the next one fit together, and the allocator is not called in steady state.
//
// Example
//   GatherArena arena({512, 256, 256, 512}, device);  // bytes of units in the order of use; the arena has 768
//   const at::Tensor memory = arena.acquire(1);
//   arena.release(1);
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

class GatherArena {
 public:
  // unit_bytes: multiples of 256.
  GatherArena(std::vector<std::int64_t> unit_bytes, at::Device device);

  // Returns kByte [bytes of the unit]: the unit's end of the arena, or newly allocated memory if another unit holds
  // this end or the unit at the other end leaves too little room.
  [[nodiscard]] at::Tensor acquire(std::size_t unit);
  void release(std::size_t unit);
  // Frees the arena until the next acquire(). No unit may hold memory of it.
  void free() { memory_ = at::Tensor(); }

 private:
  std::vector<std::int64_t> unit_bytes_;
  at::Device device_;
  std::int64_t num_bytes_;                             // the largest sum of two neighbours
  at::Tensor memory_;                                  // [num_bytes_]
  std::array<std::optional<std::size_t>, 2> holders_;  // the units at the low and the high end
};

}  // namespace d9d
