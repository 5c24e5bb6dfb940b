#include "d9d/data/order/permutation.h"

#include <bit>
#include <string>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"

namespace d9d {

namespace {

constexpr std::uint64_t kNumRounds = 8;

std::int64_t check_size(std::int64_t size) {
  D9D_CHECK(size >= 1, ConfigError, "[data::Permutation] expected size >= 1, got ", size,
            ". Give the dataset samples.");
  return size;
}

}  // namespace

Permutation::Permutation(std::int64_t size, ShuffleKey key)
    : size_(check_size(size)),
      key_(philox_key(key.seed, "data_order", std::to_string(key.epoch))),
      half_bits_((std::bit_width(static_cast<std::uint64_t>(size - 1)) + 1) / 2) {}

std::int64_t Permutation::operator()(std::int64_t index) const {
  D9D_ASSERT(index >= 0 && index < size_, "index ", index, " of a permutation of ", size_);
  const auto size = static_cast<std::uint64_t>(size_);
  std::uint64_t block = encrypt(static_cast<std::uint64_t>(index));
  while (block >= size) block = encrypt(block);
  return static_cast<std::int64_t>(block);
}

std::uint64_t Permutation::encrypt(std::uint64_t block) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = block >> half_bits_;
  std::uint64_t right = block & mask;
  for (std::uint64_t round = 0; round < kNumRounds; ++round) {
    const std::uint64_t mixed = philox4x32({.low = right, .high = round}, key_)[0];
    const std::uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

}  // namespace d9d
