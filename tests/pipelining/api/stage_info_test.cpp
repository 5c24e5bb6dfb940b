#include "d9d/pipelining/api/stage_info.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::stage_info_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> sizes(const LayerDistribution& distribution, std::int64_t num_stages) {
  std::vector<std::int64_t> result;
  std::int64_t expected_begin = 0;
  for (std::int64_t i = 0; i < num_stages; ++i) {
    const LayerRange range = layers_of_stage(distribution, {.num_stages = num_stages, .current_stage = i});
    EXPECT_EQ(range.begin, expected_begin);
    expected_begin = range.end;
    result.push_back(range.size());
  }
  EXPECT_EQ(expected_begin, distribution.num_layers);
  return result;
}

TEST(StageInfo, Virtual_layers_take_real_ones_away_from_the_ends) {
  EXPECT_THAT(sizes({16, 0, 1}, 8), ElementsAre(3, 2, 2, 2, 2, 2, 2, 1));
  EXPECT_THAT(sizes({8, 0, 0}, 2), ElementsAre(4, 4));
  EXPECT_THAT(sizes({10, 1, 1}, 4), ElementsAre(2, 3, 3, 2));
  EXPECT_THAT(sizes({8, 1, 2}, 3), ElementsAre(3, 4, 1));
  EXPECT_THAT(sizes({5, 1, 1}, 1), ElementsAre(5));
}

TEST(StageInfo, Rejects_stages_without_layers) {
  EXPECT_THROW((void)layers_of_stage({2, 0, 0}, {.num_stages = 4, .current_stage = 3}), ConfigError);
  EXPECT_THROW((void)layers_of_stage({2, 0, 0}, {.num_stages = 1, .current_stage = 1}), ConfigError);
  // The last stage would have none: the others would have layers that do not exist.
  for (std::int64_t stage = 0; stage < 4; ++stage) {
    EXPECT_THROW((void)layers_of_stage({4, 0, 5}, {.num_stages = 4, .current_stage = stage}), ConfigError) << stage;
  }
}

}  // namespace
}  // namespace d9d::stage_info_test
