#include "d9d/model_state/io/block_checksums.h"

#include <algorithm>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::int64_t num_blocks(std::span<const std::byte> bytes) {
  return (static_cast<std::int64_t>(bytes.size()) + kChecksumBlock - 1) / kChecksumBlock;
}

std::span<const std::byte> block(std::span<const std::byte> bytes, std::int64_t index) {
  const std::int64_t begin = index * kChecksumBlock;
  const std::int64_t size = std::min(kChecksumBlock, static_cast<std::int64_t>(bytes.size()) - begin);
  return bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
}

}  // namespace

std::string checksum(std::span<const std::byte> bytes) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return digits;
}

std::vector<std::string> block_checksums(std::span<const std::byte> bytes) {
  std::vector<std::string> sums;
  for (std::int64_t i = 0; i < num_blocks(bytes); ++i) sums.push_back(checksum(block(bytes, i)));
  return sums;
}

std::optional<std::int64_t> first_bad_block(std::span<const std::byte> bytes, const std::vector<std::string>& sums,
                                            std::int64_t first) {
  const std::int64_t count = num_blocks(bytes);
  D9D_CHECK(first >= 0 && first + count <= std::ssize(sums), StateError, "[model_state::checksums] expected at least ",
            first + count, " checksums, got ", sums.size(), ".");
  for (std::int64_t i = 0; i < count; ++i) {
    if (checksum(block(bytes, i)) != sums[static_cast<std::size_t>(first + i)]) return first + i;
  }
  return std::nullopt;
}

}  // namespace d9d
