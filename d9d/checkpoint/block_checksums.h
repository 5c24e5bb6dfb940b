// Checksums of blocks of bytes (XXH3), so that who reads a part of a tensor can check that part alone.
//
// Example
//   const std::vector<std::string> sums = block_checksums(bytes);
//   if (const auto bad = first_bad_block(bytes, sums, {begin, end})) ...
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "d9d/core/dtensor/layout.h"

namespace d9d {

inline constexpr std::int64_t kChecksumBlock = std::int64_t{1} << 20;  // bytes; the last block may be shorter

// One for each block: 16 hexadecimal digits.
[[nodiscard]] std::vector<std::string> block_checksums(std::span<const std::byte> bytes);

// The first block that `range` of the bytes touches and whose checksum is not `sums`'; none if all are right. Throws
// StateError unless there is one checksum a block.
[[nodiscard]] std::optional<std::int64_t> first_bad_block(std::span<const std::byte> bytes,
                                                          const std::vector<std::string>& sums, const FlatRange& range);

}  // namespace d9d
