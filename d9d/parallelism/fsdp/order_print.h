// Detects whether ranks ran different operations, or the same operations in different orders, by an all_reduce of two
// numbers once per step.
//
// Example
//   print.add(unit, OrderPrint::What::kReduced);       // at each operation
//   const at::Tensor differs = print.spread(ranks);    // 0 if all ranks agree, otherwise at least 0.5
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

// A hash of a sequence of operations. Different sequences have the same hash with a probability of 1 / 65,521.
class OrderPrint {
 public:
  enum class What : std::uint8_t { kEntered, kGathered, kReduced };

  void add(std::size_t unit, What what) {
    constexpr std::int64_t kPrime = 65521;
    value_ = (value_ * 31 + 3 * static_cast<std::int64_t>(unit) + static_cast<std::int64_t>(what) + 1) % kPrime;
  }
  void clear() { value_ = 0; }

  // Collective; does not synchronise with the device. Returns a 0-dim fp64 tensor on the device of the ranks: the sum
  // of squared deviations of the ranks' hashes from their mean.
  [[nodiscard]] at::Tensor spread(Communicator& ranks) const;

 private:
  std::int64_t value_ = 0;
};

}  // namespace d9d
