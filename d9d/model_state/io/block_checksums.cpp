#include "d9d/model_state/io/block_checksums.h"

#include <algorithm>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"

namespace d9d {
namespace {

constexpr std::int64_t kLeastBlock = std::int64_t{4} << 10;
constexpr std::int64_t kLargestBlock = std::int64_t{1} << 20;

std::uint64_t sum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::span<const std::byte> part_at(std::span<const std::byte> bytes, std::int64_t begin, std::int64_t size) {
  return bytes.subspan(static_cast<std::size_t>(begin),
                       static_cast<std::size_t>(std::min(size, std::ssize(bytes) - begin)));
}

}  // namespace

std::int64_t checksum_block(std::int64_t num_bytes) {
  std::int64_t block = kLeastBlock;
  while (block < kLargestBlock && block * (block / 2) <= num_bytes) block *= 2;  // (2 block)^2 <= 8 num_bytes
  return block;
}

std::string checksum(std::span<const std::byte> bytes) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(sum_of(bytes)));
  return digits;
}

std::vector<std::uint64_t> block_checksums(std::span<const std::byte> bytes, std::int64_t block) {
  std::vector<std::uint64_t> sums;
  for (std::int64_t begin = 0; begin < std::ssize(bytes); begin += block) {
    sums.push_back(sum_of(part_at(bytes, begin, block)));
  }
  return sums;
}

std::optional<std::int64_t> first_bad_block(std::span<const std::byte> bytes, std::int64_t block,
                                            std::span<const std::uint64_t> sums, std::int64_t first) {
  const std::int64_t count = divide_up(std::ssize(bytes), block);
  D9D_CHECK(first >= 0 && first + count <= std::ssize(sums), StateError, "[model_state::checksums] expected at least ",
            first + count, " checksums, got ", sums.size(), ".");
  for (std::int64_t i = 0; i < count; ++i) {
    if (sum_of(part_at(bytes, i * block, block)) != sums[static_cast<std::size_t>(first + i)]) return first + i;
  }
  return std::nullopt;
}

}  // namespace d9d
