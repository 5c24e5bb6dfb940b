// Rounding of float to bfloat16 in which the probability to round away from zero is the discarded fraction, so that the
// mean of the result is the value. It uses integer arithmetic only, so that CPU and GPU agree bit by bit.
//
// Element e of a stream uses 16 bits of the Philox block with counter (e / 8, step): the lower half of word (e % 8) / 2
// for even e, the upper half for odd e.
//
// Example
//   const std::uint32_t bits = stochastic_bits(1.00234375F, rounding_noise({.key = seed}, /*element=*/0));
//   const auto bfloat16 = static_cast<std::uint16_t>(bits >> 16);
#pragma once

#include <bit>
#include <cstdint>

#include "d9d/base/philox.h"
#include "d9d/core/rng/random_stream.h"

namespace d9d::kernels::detail {

constexpr std::int64_t kNoisesPerBlock = 8;

// The Philox block of elements [8 * block, 8 * block + 8).
[[nodiscard]] constexpr PhiloxWords noise_block(RandomStream stream, std::int64_t block) {
  return philox4x32({.low = static_cast<std::uint64_t>(block), .high = stream.step}, stream.key);
}

// The random number, below 2^16, of the element at `position` in its block.
[[nodiscard]] constexpr std::uint32_t noise_in_block(const PhiloxWords& block, std::int64_t position) {
  return (block[static_cast<std::size_t>(position / 2)] >> (position % 2 * 16)) & 0xFFFFU;
}

[[nodiscard]] constexpr std::uint32_t rounding_noise(RandomStream stream, std::int64_t element) {
  return noise_in_block(noise_block(stream, element / kNoisesPerBlock), element % kNoisesPerBlock);
}

// Returns bits whose upper half is the bfloat16. NaN stays NaN; infinities and values that bfloat16 represents stay as
// they are. The value after the largest finite bfloat16 is infinity, as in rounding to nearest.
[[nodiscard]] constexpr std::uint32_t stochastic_bits(float value, std::uint32_t noise) {
  constexpr std::uint32_t kQuiet = 0x00400000;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return value != value ? bits | kQuiet : bits + noise;
}

}  // namespace d9d::kernels::detail
