#include "d9d/checkpoint/block_checksums.h"

#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::block_checksums_test {
namespace {

TEST(BlockChecksums, Are_those_of_xxh3) {
  EXPECT_TRUE(block_checksums({}).empty());
  // XXH3_64bits of "abc", as xxhsum -H3 prints it.
  const std::string text = "abc";
  EXPECT_EQ(block_checksums(std::as_bytes(std::span(text))), std::vector<std::string>{"78af5f94892f3950"});
}

TEST(BlockChecksums, Find_a_change_in_the_blocks_that_are_read_alone) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(2 * kChecksumBlock + 5));
  const auto sums = block_checksums(bytes);
  ASSERT_EQ(sums.size(), 3U);
  bytes[static_cast<std::size_t>(kChecksumBlock)] = std::byte{1};
  EXPECT_EQ(first_bad_block(bytes, sums, {0, kChecksumBlock}), std::nullopt);
  EXPECT_EQ(first_bad_block(bytes, sums, {0, kChecksumBlock + 1}), 1);
  EXPECT_EQ(first_bad_block(bytes, sums, {2 * kChecksumBlock, 2 * kChecksumBlock + 5}), std::nullopt);
  EXPECT_EQ(first_bad_block(bytes, sums, {7, 7}), std::nullopt);
  EXPECT_THROW((void)first_bad_block(bytes, {}, {0, 1}), StateError);
}

}  // namespace
}  // namespace d9d::block_checksums_test
