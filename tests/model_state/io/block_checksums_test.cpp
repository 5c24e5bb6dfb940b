#include "d9d/model_state/io/block_checksums.h"

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

TEST(BlockChecksums, Of_all_bytes_is_that_of_one_block_and_covers_what_is_behind_it) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(kChecksumBlock));
  EXPECT_EQ(checksum(bytes), block_checksums(bytes).front());
  bytes.push_back(std::byte{0});
  const std::string before = checksum(bytes);
  bytes.back() = std::byte{1};
  EXPECT_NE(checksum(bytes), before);
}

TEST(BlockChecksums, Find_a_change_in_the_blocks_that_are_read_alone) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(2 * kChecksumBlock + 5));
  const auto sums = block_checksums(bytes);
  ASSERT_EQ(sums.size(), 3U);
  bytes[static_cast<std::size_t>(kChecksumBlock)] = std::byte{1};
  const std::span<const std::byte> all(bytes);
  const auto block = static_cast<std::size_t>(kChecksumBlock);
  EXPECT_EQ(first_bad_block(all.first(block), sums, 0), std::nullopt);
  EXPECT_EQ(first_bad_block(all, sums, 0), 1);
  EXPECT_EQ(first_bad_block(all.subspan(block), sums, 1), 1);
  EXPECT_EQ(first_bad_block(all.subspan(2 * block), sums, 2), std::nullopt);
  EXPECT_EQ(first_bad_block({}, sums, 3), std::nullopt);
  EXPECT_THROW((void)first_bad_block(all, sums, 1), StateError);
}

}  // namespace
}  // namespace d9d::block_checksums_test
