#include "d9d/data/order/python_random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <sstream>
#include <vector>

namespace d9d {

namespace {

constexpr std::size_t kWords = std::mt19937::state_size;

// Returns the state after array initialisation (init_by_array in the authors' program).
std::array<std::uint32_t, kWords> state_of(std::uint64_t seed) {
  std::vector<std::uint32_t> key{static_cast<std::uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<std::uint32_t>(seed >> 32));
  std::array<std::uint32_t, kWords> state{};
  state[0] = 19650218;
  const auto mixed = [&](std::size_t i) { return state[i - 1] ^ (state[i - 1] >> 30); };
  for (std::size_t i = 1; i < kWords; ++i) state[i] = 1812433253U * mixed(i) + static_cast<std::uint32_t>(i);
  std::size_t i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    state[0] = state[kWords - 1];
    i = 1;
  };
  for (std::size_t step = 0; step < std::max(kWords, key.size()); ++step) {
    const std::size_t j = step % key.size();
    state[i] = (state[i] ^ (mixed(i) * 1664525U)) + key[j] + static_cast<std::uint32_t>(j);
    advance();
  }
  for (std::size_t step = 1; step < kWords; ++step) {
    state[i] = (state[i] ^ (mixed(i) * 1566083941U)) - static_cast<std::uint32_t>(i);
    advance();
  }
  state[0] = 0x80000000U;
  return state;
}

}  // namespace

PythonRandom::PythonRandom(std::uint64_t seed) {
  std::stringstream text;  // the standard's textual form of an engine lists its words
  for (const std::uint32_t word : state_of(seed)) text << word << ' ';
  text << kWords;  // libstdc++ appends the position: all words are used up
  text >> twister_;
}

double PythonRandom::uniform() {
  const std::uint64_t high = twister_() >> 5, low = twister_() >> 6;
  return static_cast<double>((high << 26) + low) * 0x1.0p-53;
}

std::uint64_t PythonRandom::below(std::uint64_t bound) {
  const int shift = 32 - std::bit_width(bound);
  std::uint64_t value = twister_() >> shift;
  while (value >= bound) value = twister_() >> shift;
  return value;
}

}  // namespace d9d
