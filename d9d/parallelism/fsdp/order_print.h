// Tells whether ranks did the same things in the same order, by numbers that cross them once a step.
//
// Example
//   print.add(unit, OrderPrint::What::kReduced);       // whenever something crosses the ranks
//   const at::Tensor differs = print.spread(ranks);    // 0, or at least 0.5
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

// Ranks that did other things have the same print once in 65,521 times.
class OrderPrint {
 public:
  enum class What : std::uint8_t { kEntered, kGathered, kReduced };

  void add(std::size_t unit, What what) {
    constexpr std::int64_t kPrime = 65521;
    value_ = (value_ * 31 + 3 * static_cast<std::int64_t>(unit) + static_cast<std::int64_t>(what) + 1) % kPrime;
  }
  void clear() { value_ = 0; }

  // Collective; does not wait for the device. fp64, 0-dim, on the device of the ranks: what the squares of prints sum
  // to beyond those of equal ones.
  [[nodiscard]] at::Tensor spread(Communicator& ranks) const;

 private:
  std::int64_t value_ = 0;
};

}  // namespace d9d
