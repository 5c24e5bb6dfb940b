// Checksums of blocks of bytes (XXH3), so that a reader of a part of a tensor can check only that part.
//
// Example
//   const std::int64_t block = checksum_block(std::ssize(bytes));
//   const std::vector<std::uint64_t> sums = block_checksums(bytes, block);
//   if (const auto bad = first_bad_block(bytes.subspan(3 * block), block, sums, /*first=*/3)) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace d9d {

// Where the checksums of a stored tensor's blocks are.
struct BlockChecksums {
  std::string tensor;    // its name, for errors
  std::string path;      // of the file that holds the checksums
  std::int64_t offset;   // of the first checksum in the file; 8 bytes each, little-endian, contiguous
  std::string checksum;  // checksum() of all of them
};

// The bytes of a block of a tensor of num_bytes; its last block may be shorter. A read of a range of the tensor reads
// about one block more, and 8 bytes for each block of the tensor. This overhead is least at blocks of sqrt(8
// num_bytes); the result is the power of two at or below that, at least 4 KiB (a page, which a disk reads whole) and at
// most 1 MiB.
[[nodiscard]] std::int64_t checksum_block(std::int64_t num_bytes);

// The checksum of all bytes as one block: 16 hexadecimal digits.
[[nodiscard]] std::string checksum(std::span<const std::byte> bytes);

// One checksum for each block of `block` bytes.
[[nodiscard]] std::vector<std::uint64_t> block_checksums(std::span<const std::byte> bytes, std::int64_t block);

// `bytes` begins with block `first` of the tensor. Returns the first of its blocks whose checksum differs from `sums`;
// none if all match. Throws StateError if `sums` has fewer blocks.
[[nodiscard]] std::optional<std::int64_t> first_bad_block(std::span<const std::byte> bytes, std::int64_t block,
                                                          std::span<const std::uint64_t> sums, std::int64_t first);

}  // namespace d9d
