// The memory of gathered units, allocated once, when it is first used. Units that are used one after the other take
// opposite ends, so that a unit and the next one fit together and the allocator is never called in steady state.
//
// Example
//   GatherArena arena({100, 60, 60, 100}, device);    // bytes of units in the order of use: 160 bytes
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

  // Memory [bytes of the unit] for one unit at each end; another unit of the same end gets memory of its own.
  [[nodiscard]] at::Tensor acquire(std::size_t unit);
  void release(std::size_t unit);
  // Gives the memory back until the next acquire(). No unit holds any.
  void free() { memory_ = at::Tensor(); }

 private:
  std::vector<std::int64_t> unit_bytes_;
  at::Device device_;
  std::int64_t num_bytes_;                             // the largest two neighbours together
  at::Tensor memory_;                                  // [num_bytes_]
  std::array<std::optional<std::size_t>, 2> holders_;  // of the low and the high end
};

}  // namespace d9d
