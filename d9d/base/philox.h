// Philox4x32-10, a counter-based random function: four 32-bit words from a 128-bit counter and a 64-bit key. Any
// element of a stream can be computed independently, on any device, in any order.
//
// Example
//   const PhiloxWords words = philox4x32({.low = element, .high = step}, key);
//   const double u = uniform_double(words[0], words[1]);       // [0, 1), 53 bits
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace d9d {

using PhiloxWords = std::array<std::uint32_t, 4>;

struct PhiloxCounter {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

[[nodiscard]] constexpr PhiloxWords philox4x32(PhiloxCounter counter, std::uint64_t key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  constexpr int kNumRounds = 10;
  auto c0 = static_cast<std::uint32_t>(counter.low);
  auto c1 = static_cast<std::uint32_t>(counter.low >> 32);
  auto c2 = static_cast<std::uint32_t>(counter.high);
  auto c3 = static_cast<std::uint32_t>(counter.high >> 32);
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kNumRounds; ++round) {
    const std::uint64_t p0 = kMultiplier0 * c0;
    const std::uint64_t p1 = kMultiplier1 * c2;
    const auto next0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const auto next2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = next0;
    c2 = next2;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

// A double in [0, 1) from 53 of the 64 bits.
[[nodiscard]] constexpr double uniform_double(std::uint32_t high, std::uint32_t low) {
  constexpr double kTwoToMinus53 = 0x1.0p-53;
  return static_cast<double>((static_cast<std::uint64_t>(high >> 5) << 26) | (low >> 6)) * kTwoToMinus53;
}

// The key of one stream: a 64-bit hash of its user. Equal arguments give equal streams on every rank and machine.
//   purpose   "init", "dropout", ...          name   canonical parameter or layer name
[[nodiscard]] std::uint64_t philox_key(std::uint64_t base_seed, std::string_view purpose, std::string_view name);

}  // namespace d9d
