// Checksums of blocks of bytes (XXH3), so that who reads a part of a tensor can check that part alone.
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

// Of a stored tensor: where the checksums of its blocks are.
struct BlockChecksums {
  std::string tensor;    // its name, for errors
  std::string path;      // of the file that has them
  std::int64_t offset;   // of the first there: one after the other, 8 bytes each, little-endian
  std::string checksum;  // checksum() of all of them
};

// The bytes of a block of a tensor of num_bytes; its last block may be shorter. Who reads a range of the tensor reads
// about a block more, and 8 bytes for each block of the tensor. The sum is least at sqrt(8 num_bytes): the power of two
// at or below that, from 4 KiB (a page, of which a disk reads no part) to 1 MiB.
[[nodiscard]] std::int64_t checksum_block(std::int64_t num_bytes);

// Of all bytes as one block, however many: 16 hexadecimal digits.
[[nodiscard]] std::string checksum(std::span<const std::byte> bytes);

// One for each block of `block` bytes.
[[nodiscard]] std::vector<std::uint64_t> block_checksums(std::span<const std::byte> bytes, std::int64_t block);

// `bytes` begins with block `first` of the tensor. The first of its blocks whose checksum is not that of `sums`; none
// if all are right. Throws StateError if `sums` has fewer blocks.
[[nodiscard]] std::optional<std::int64_t> first_bad_block(std::span<const std::byte> bytes, std::int64_t block,
                                                          std::span<const std::uint64_t> sums, std::int64_t first);

}  // namespace d9d
