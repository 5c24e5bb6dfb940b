#include "d9d/data/order/numpy_permutation.h"

#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include "d9d/base/check.h"

namespace d9d {

namespace {

__extension__ using UInt128 = unsigned __int128;

// The pool of words that numpy's SeedSequence derives from a seed.
class SeedSequence {
 public:
  explicit SeedSequence(std::uint64_t seed) {
    const std::array<std::uint32_t, 4> entropy{static_cast<std::uint32_t>(seed),
                                               static_cast<std::uint32_t>(seed >> 32)};
    std::uint32_t constant = 0x43b0d7e5;
    const auto hash = [&constant](std::uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875;
      value *= constant;
      return value ^ (value >> 16);
    };
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(entropy[i]);
    for (std::size_t source = 0; source < pool_.size(); ++source) {
      for (std::size_t target = 0; target < pool_.size(); ++target) {
        if (source == target) continue;
        const std::uint32_t mixed = 0xca01f9ddU * pool_[target] - 0x4973f715U * hash(pool_[source]);
        pool_[target] = mixed ^ (mixed >> 16);
      }
    }
  }

  [[nodiscard]] std::array<std::uint64_t, 4> state() const {
    std::array<std::uint64_t, 4> words{};
    std::uint32_t constant = 0x8b51f9dd;
    for (std::size_t i = 0; i < 2 * words.size(); ++i) {
      std::uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38ded;
      value *= constant;
      value ^= value >> 16;
      words[i / 2] |= static_cast<std::uint64_t>(value) << (i % 2 * 32);
    }
    return words;
  }

 private:
  std::array<std::uint32_t, 4> pool_{};
};

class Pcg64 {
 public:
  explicit Pcg64(std::uint64_t seed) {
    const auto words = SeedSequence(seed).state();
    increment_ = (UInt128{words[2]} << 64 | words[3]) << 1 | 1;
    step();
    state_ += UInt128{words[0]} << 64 | words[1];
    step();
  }

  // Returns 32 random bits: alternately the lower half of a new 64-bit number and its upper half.
  std::uint32_t next() {
    if (upper_half_) return *std::exchange(upper_half_, std::nullopt);
    step();
    const auto high = static_cast<std::uint64_t>(state_ >> 64), low = static_cast<std::uint64_t>(state_);
    const std::uint64_t drawn = std::rotr(high ^ low, static_cast<int>(state_ >> 122));
    upper_half_ = static_cast<std::uint32_t>(drawn >> 32);
    return static_cast<std::uint32_t>(drawn);
  }

  // Returns a uniform integer in [0, most], by rejection: draws bit_width(most) bits until they are at most `most`.
  std::uint32_t up_to(std::uint32_t most) {
    const std::uint32_t mask = 0xFFFFFFFFU >> std::countl_zero(most | 1);
    std::uint32_t value = next() & mask;
    while (value > most) value = next() & mask;
    return value;
  }

 private:
  void step() {
    constexpr UInt128 kMultiplier = UInt128{0x2360ED051FC65DA4} << 64 | 0x4385DF649FCCF645;
    state_ = state_ * kMultiplier + increment_;
  }

  UInt128 state_ = 0;
  UInt128 increment_ = 0;
  std::optional<std::uint32_t> upper_half_;
};

}  // namespace

std::vector<std::int64_t> numpy_permutation(std::int64_t size, std::uint64_t seed) {
  D9D_CHECK(size >= 0 && size < std::int64_t{0xFFFFFFFF}, ConfigError,
            "[data::numpy_permutation] expected less than 2^32 - 1 rows, got ", size, ". Leave the order as it is.");
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  Pcg64 random(seed);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.up_to(static_cast<std::uint32_t>(i - 1))]);
  }
  return order;
}

}  // namespace d9d
