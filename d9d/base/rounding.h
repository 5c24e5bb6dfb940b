// Divisions of counts and sizes that round up.
#pragma once

#include <cstdint>

namespace d9d {

// size >= 0, by > 0.
[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t size, std::int64_t by) { return (size + by - 1) / by; }
// The smallest multiple of `unit` that is not less than `size`.
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t size, std::int64_t unit) {
  return divide_up(size, unit) * unit;
}

}  // namespace d9d
