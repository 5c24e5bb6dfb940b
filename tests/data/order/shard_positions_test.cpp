#include "d9d/data/order/shard_positions.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::shard_positions_test {
namespace {

using ::testing::ElementsAre;
using Positions = std::vector<std::int64_t>;

std::vector<Positions> shards(std::int64_t items, std::int64_t num_shards, ShardIndexingMode mode, bool is_padded) {
  std::vector<Positions> result;
  for (std::int64_t shard = 0; shard < num_shards; ++shard) {
    const ShardPositions positions(items,
                                   {.num_shards = num_shards, .shard = shard, .mode = mode, .is_padded = is_padded});
    auto& row = result.emplace_back();
    for (std::int64_t i = 0; i < positions.size(); ++i) row.push_back(positions(i));
  }
  return result;
}

// The tables of d9d 0.24, except for five items in four chunked shards, where it gave the lengths 2, 2, 2 and -1.
TEST(ShardPositions, Equal_the_tables) {
  using enum ShardIndexingMode;
  EXPECT_THAT(shards(5, 2, kSequential, true), ElementsAre(Positions{0, 2, 4}, Positions{1, 3, 4}));
  EXPECT_THAT(shards(5, 2, kSequential, false), ElementsAre(Positions{0, 2, 4}, Positions{1, 3}));
  EXPECT_THAT(shards(5, 2, kChunked, true), ElementsAre(Positions{0, 1, 2}, Positions{3, 4, 4}));
  EXPECT_THAT(shards(5, 2, kChunked, false), ElementsAre(Positions{0, 1, 2}, Positions{3, 4}));
  EXPECT_THAT(shards(5, 4, kChunked, false), ElementsAre(Positions{0, 1}, Positions{2, 3}, Positions{4}, Positions{}));
  EXPECT_THAT(shards(1, 3, kSequential, true), ElementsAre(Positions{0}, Positions{0}, Positions{0}));
}

TEST(ShardPositions, Cover_each_item_once_without_padding) {
  for (const auto mode : {ShardIndexingMode::kSequential, ShardIndexingMode::kChunked}) {
    for (std::int64_t items = 0; items < 20; ++items) {
      for (std::int64_t num_shards = 1; num_shards < 24; ++num_shards) {
        Positions all;
        for (const auto& shard : shards(items, num_shards, mode, false))
          all.insert(all.end(), shard.begin(), shard.end());
        std::ranges::sort(all);
        Positions expected;
        for (std::int64_t i = 0; i < items; ++i) expected.push_back(i);
        EXPECT_EQ(all, expected) << items << " over " << num_shards;
      }
    }
  }
}

TEST(ShardPositions, Are_refused_outside_the_shards_and_for_padding_of_nothing) {
  EXPECT_THROW(ShardPositions(5, {.num_shards = 2, .shard = 2}), ConfigError);
  EXPECT_THROW(ShardPositions(0, {.num_shards = 2, .shard = 0, .is_padded = true}), ConfigError);
}

}  // namespace
}  // namespace d9d::shard_positions_test
