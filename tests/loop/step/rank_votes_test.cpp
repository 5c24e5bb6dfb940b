#include "d9d/loop/step/rank_votes.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <mutex>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/dist_context/dist_context.h"

#include "tests/support/ranks.h"

namespace d9d::test::rank_votes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What the ranks of a job say if each says vote(rank).
JobVotes votes_of(std::int64_t num_ranks, const std::function<RankVotes(std::int64_t)>& vote) {
  std::mutex mutex;
  std::vector<double> sums;
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = num_ranks}, .world = borrowed(world)});
    const std::vector<double> numbers = to_numbers(vote(world.rank()), context.mesh(MeshDomain::kBatch));
    const std::lock_guard lock(mutex);
    sums.resize(numbers.size());
    std::ranges::transform(sums, numbers, sums.begin(), std::plus());
  });
  return read_votes(sums);
}

TEST(RankVotes, Stop_all_ranks_when_any_one_wants_to) {
  for (std::int64_t who = 0; who < 3; ++who) {
    EXPECT_TRUE(votes_of(3, [&](std::int64_t rank) { return RankVotes{.asks_to_stop = rank == who}; }).stops) << who;
    const JobVotes votes =
        votes_of(3, [&](std::int64_t rank) { return RankVotes{.signal = rank == who ? SIGINT : 0}; });
    EXPECT_TRUE(votes.stops) << who;
    EXPECT_EQ(votes.signal, SIGINT) << who;
  }
  EXPECT_EQ(votes_of(2, [](std::int64_t rank) { return RankVotes{.signal = rank == 0 ? SIGINT : SIGTERM}; }).signal,
            SIGTERM);
  EXPECT_FALSE(votes_of(3, [](std::int64_t) { return RankVotes(); }).stops);
}

TEST(RankVotes, Add_up_the_progress_of_a_save) {
  const JobVotes votes = votes_of(3, [](std::int64_t rank) {
    return RankVotes{.save = {.num_working = rank > 0 ? 1 : 0, .num_failed = rank == 2 ? 1 : 0}};
  });
  EXPECT_EQ(votes.save.num_working, 2);
  EXPECT_EQ(votes.save.num_failed, 1);
  EXPECT_FALSE(votes.stops);
}

TEST(RankVotes, Have_the_next_microbatches_of_each_rank_and_none_of_a_rank_alone) {
  const auto vote = [](std::int64_t rank) { return RankVotes{.next_microbatches = 10 * rank}; };
  EXPECT_THAT(votes_of(3, vote).next_microbatches, ElementsAre(0, 10, 20));
  EXPECT_THAT(votes_of(1, vote).next_microbatches, IsEmpty());
}

}  // namespace
}  // namespace d9d::test::rank_votes_test
