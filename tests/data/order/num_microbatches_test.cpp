#include "d9d/data/order/num_microbatches.h"

#include <limits>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::num_microbatches_test {
namespace {

TEST(NumMicrobatches, Shares_the_global_batch_among_data_parallel_ranks) {
  for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (std::int64_t microbatches = 1; microbatches <= 5; ++microbatches) {
      const BatchSizes sizes{
          .data_parallel_size = ranks, .global_batch_size = ranks * microbatches * 3, .microbatch_size = 3};
      EXPECT_EQ(num_microbatches_for_global_batch(sizes), microbatches) << "ranks " << ranks;
    }
  }
}

TEST(NumMicrobatches, Refuses_a_rest_and_names_all_three_sizes) {
  for (std::int64_t ranks = 2; ranks <= 8; ++ranks) {
    const BatchSizes sizes{.data_parallel_size = ranks, .global_batch_size = ranks * 3 + 3, .microbatch_size = 3};
    if ((ranks + 1) % ranks == 0) continue;
    EXPECT_THROW((void)num_microbatches_for_global_batch(sizes), ConfigError) << "ranks " << ranks;
  }
  EXPECT_THROW((void)num_microbatches_for_global_batch({.global_batch_size = 4, .microbatch_size = 8}), ConfigError);
}

TEST(NumMicrobatches, Refuses_sizes_that_are_not_positive) {
  for (const std::int64_t bad : {0, -8}) {
    EXPECT_THROW((void)num_microbatches_for_global_batch({.data_parallel_size = bad}), ConfigError);
    EXPECT_THROW((void)num_microbatches_for_global_batch({.global_batch_size = bad}), ConfigError);
    EXPECT_THROW((void)num_microbatches_for_global_batch({.microbatch_size = bad}), ConfigError);
  }
}

TEST(NumMicrobatches, Survives_sizes_whose_product_overflows) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW((void)num_microbatches_for_global_batch(
                   {.data_parallel_size = kHuge, .global_batch_size = 8, .microbatch_size = kHuge}),
               ConfigError);
}

}  // namespace
}  // namespace d9d::num_microbatches_test
