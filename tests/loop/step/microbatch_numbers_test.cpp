#include "d9d/loop/step/microbatch_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/ranks.h"

namespace d9d::microbatch_numbers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Rank 3 of a mesh of two data-parallel by two context-parallel ranks.
DistContext second_of_two() {
  return DistContext({.mesh = {.data_parallel_replicate = 2, .context_parallel_shard = 2},
                      .world = test::lone_rank(/*rank=*/3, /*num_ranks=*/4)});
}

TEST(MicrobatchNumbers, Go_to_the_data_parallel_ranks_in_turn) {
  const DistContext context = second_of_two();
  EXPECT_THAT(microbatch_numbers(context, {}, 3), ElementsAre(1, 3, 5));
}

TEST(MicrobatchNumbers, Are_those_of_the_stream_where_it_has_some) {
  const DistContext context = second_of_two();
  EXPECT_THAT(microbatch_numbers(context, {4, 0}, 2), ElementsAre(4, 0));
  EXPECT_THAT(
      [&] {
        (void)microbatch_numbers(context, {4, 0}, 3);
      },
      ThrowsMessage<ConfigError>(HasSubstr("each of the 3 microbatches of a pack, got 2")));
}

}  // namespace
}  // namespace d9d::microbatch_numbers_test
