#include "d9d/model_state/io/block_checksums.h"

#include <cmath>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::block_checksums_test {
namespace {

constexpr std::int64_t kBlock = 4096;

TEST(BlockChecksums, Are_those_of_xxh3) {
  EXPECT_TRUE(block_checksums({}, kBlock).empty());
  // XXH3_64bits of "abc", as xxhsum -H3 prints it.
  const std::string text = "abc";
  EXPECT_EQ(block_checksums(std::as_bytes(std::span(text)), kBlock), std::vector<std::uint64_t>{0x78af5f94892f3950});
  EXPECT_EQ(checksum(std::as_bytes(std::span(text))), "78af5f94892f3950");
}

TEST(BlockChecksums, Of_all_bytes_covers_the_last_of_many) {
  std::vector<std::byte> bytes(std::size_t{3} << 20);
  const std::string before = checksum(bytes);
  bytes.back() = std::byte{1};
  EXPECT_NE(checksum(bytes), before);
}

TEST(BlockChecksums, Cover_blocks_that_cost_a_reader_least) {
  EXPECT_EQ(checksum_block(1), 4 << 10);
  EXPECT_EQ(checksum_block(std::int64_t{1} << 40), 1 << 20);
  for (std::int64_t num_bytes = std::int64_t{2} << 20; num_bytes < std::int64_t{128} << 30;
       num_bytes += num_bytes / 7) {
    const auto block = static_cast<double>(checksum_block(num_bytes)), best = std::sqrt(8.0 * num_bytes);
    EXPECT_LE(block, best) << num_bytes;
    EXPECT_GT(block, best / 2) << num_bytes;
    EXPECT_EQ(std::exp2(std::round(std::log2(block))), block) << "a power of two: no element lies in two blocks";
  }
}

TEST(BlockChecksums, Find_a_change_in_the_blocks_that_are_read_alone) {
  std::vector<std::byte> bytes(2 * kBlock + 5);
  const auto sums = block_checksums(bytes, kBlock);
  ASSERT_EQ(sums.size(), 3U);
  bytes[kBlock] = std::byte{1};
  const std::span<const std::byte> all(bytes);
  EXPECT_EQ(first_bad_block(all.first(kBlock), kBlock, sums, 0), std::nullopt);
  EXPECT_EQ(first_bad_block(all, kBlock, sums, 0), 1);
  EXPECT_EQ(first_bad_block(all.subspan(kBlock), kBlock, sums, 1), 1);
  EXPECT_EQ(first_bad_block(all.subspan(2 * kBlock), kBlock, sums, 2), std::nullopt);
  EXPECT_EQ(first_bad_block({}, kBlock, sums, 3), std::nullopt);
  EXPECT_THROW((void)first_bad_block(all, kBlock, sums, 1), StateError);
}

}  // namespace
}  // namespace d9d::block_checksums_test
