#include "tests/support/ranks.h"

#include <array>
#include <atomic>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::test::ranks_test {
namespace {

TEST(RunRanks, Runs_the_body_once_a_rank) {
  std::array<std::atomic<int>, 4> num_runs{};
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    EXPECT_EQ(world.size(), 4);
    ++num_runs[static_cast<std::size_t>(world.rank())];
  });
  for (const auto& runs : num_runs) EXPECT_EQ(runs, 1);
}

TEST(RunRanks, A_rank_that_throws_frees_those_that_wait_and_its_error_is_rethrown) {
  const auto body = [](World& world) {
    const auto all = world.communicator(group_of(world, "all"));
    D9D_CHECK(world.rank() != 2, ConfigError, "the cause");
    all->barrier();
  };
  try {
    run_ranks(RankBackend::kThreads, 4, body);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "the cause");
  }
}

TEST(RunRanks, Ranks_meet_in_groups) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const bool is_even = world.rank() % 2 == 0;
    const auto half = world.communicator(
        group_of(world, "parity", is_even ? std::vector<std::int64_t>{0, 2} : std::vector<std::int64_t>{1, 3}));
    const at::Tensor sum = at::full({1}, world.rank(), at::kLong);
    half->all_reduce(sum, ReduceOp::kSum).wait();
    EXPECT_EQ(sum.item<std::int64_t>(), is_even ? 2 : 4);
  });
}

}  // namespace
}  // namespace d9d::test::ranks_test
