// Checksums of blocks of bytes (XXH3), so that who reads a part of a tensor can check that part alone.
//
// Example
//   const std::vector<std::string> sums = block_checksums(bytes);
//   if (const auto bad = first_bad_block(bytes.subspan(3 * kChecksumBlock), sums, /*first=*/3)) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace d9d {

inline constexpr std::int64_t kChecksumBlock = std::int64_t{1} << 20;  // bytes; the last block may be shorter

// Of a stored tensor.
struct BlockChecksums {
  std::string tensor;             // its name, for errors
  std::vector<std::string> sums;  // block_checksums() of its bytes
};

// Of all bytes as one block, however many: 16 hexadecimal digits.
[[nodiscard]] std::string checksum(std::span<const std::byte> bytes);

// One for each block.
[[nodiscard]] std::vector<std::string> block_checksums(std::span<const std::byte> bytes);

// `bytes` begins with block `first` of the tensor. The first of its blocks whose checksum is not that of `sums`; none
// if all are right. Throws StateError if `sums` has fewer blocks.
[[nodiscard]] std::optional<std::int64_t> first_bad_block(std::span<const std::byte> bytes,
                                                          const std::vector<std::string>& sums, std::int64_t first);

}  // namespace d9d
