// Errors that a rank finds after another rank has failed must not be reported as the cause.
#include <signal.h>
#include <unistd.h>

#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/to_host.h"
#include "d9d/core/launch/launch.h"

#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace d9d::test::peer_failure_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Polls without an operation: the failure that a rank which only computes is told of.
std::string wait_for_failure(const World& world) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      world.throw_if_failed();
      std::this_thread::yield();
    } catch (const PeerFailedError& error) {
      return error.what();
    }
  }
  return "";
}

TEST(PeerFailure, Is_told_to_who_asks_before_it_believes_a_value) {
  run_ranks(RankBackend::kGloo, 2, [&](World& world) {
    const auto all = world.communicator(group_of(world, "all"));
    all->barrier();
    EXPECT_NO_THROW(world.throw_if_failed());
    if (world.rank() == 1) return world.abort("rank 1 failed: early");
    EXPECT_THAT(wait_for_failure(world), HasSubstr("rank 1 failed: early"));
    EXPECT_THROW((void)to_host(at::ones({1}), *all), PeerFailedError);
  });
}

// Rank 1 returns before it makes the group in which rank 0 waits for it.
const TestProgram kReturnsEarly("rank_returns_early", [] {
  return launch({.device = DeviceChoice::kCpu, .ranks = RankPlacement::kProcesses}, {.data_parallel_shard = 2},
                [](DistContext& context) {
                  if (context.rank() == 0) context.wait_world();
                });
});

TEST(PeerFailure, Is_a_rank_whose_program_has_returned) {
  const Result result = Program("rank_returns_early", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("waits for rank 1, whose program has returned"));
}

const TestProgram kGarbage("error_after_a_peer_failed", [] {
  return launch({.device = DeviceChoice::kCpu, .ranks = RankPlacement::kProcesses}, {.data_parallel_shard = 2},
                [](DistContext& context) {
                  context.wait_world();
                  if (context.rank() == 1) {
                    context.world()->abort("rank 1 failed: the cause");
                    while (true) ::pause();
                  }
                  (void)wait_for_failure(*context.world());
                  throw StateError("expected a finite loss, got garbage");
                });
});

TEST(PeerFailure, Goes_before_what_a_rank_finds_wrong_afterwards) {
  const Result result = Program("error_after_a_peer_failed", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, Not(HasSubstr("garbage")));
}

// Otherwise each would take the other for the cause, and none would say it.
TEST(PeerFailure, Is_not_the_end_of_a_rank_that_found_a_cause_itself) {
  run_ranks(RankBackend::kGloo, 2, [&](World& world) {
    const auto first = world.communicator(group_of(world, "first"));
    RankGroup group = group_of(world, "second");
    group.lane = 1;
    const auto second = world.communicator(group);
    first->barrier();
    second->barrier();
    const auto& mine = world.rank() == 0 ? first : second;
    const auto& other = world.rank() == 0 ? second : first;
    mine->abort(cat("rank ", world.rank(), " has waited too long."));
    while (!other->has_failed()) std::this_thread::yield();
    try {
      other->barrier();
      FAIL() << "expected the other rank's abort";
    } catch (const PeerFailedError& error) {
      FAIL() << error.what();
    } catch (const CommunicationError& error) {
      EXPECT_THAT(error.what(), HasSubstr(cat("rank ", world.rank(), " has waited too long.")));
    }
  });
}

// Rank 0 waits for rank 1, which would wait for rank 2.
const TestProgram kStopped("rank_behind_another_is_stopped", [] {
  return launch({.device = DeviceChoice::kCpu, .ranks = RankPlacement::kProcesses}, {.data_parallel_shard = 3},
                [](DistContext& context) {
                  context.wait_world();
                  World& world = *context.world();
                  if (world.rank() == 2) ::raise(SIGSTOP);
                  world.set_timeout(std::chrono::seconds(world.rank() == 0 ? 1 : 1000));
                  const std::vector<std::int64_t> pair = {0, 1};
                  const auto ranks = world.communicator({.name = "pair", .ranks = pair, .index = world.rank()});
                  ranks->barrier();
                  if (world.rank() == 0) ranks->barrier();
                  while (true) ::pause();
                });
});

TEST(PeerFailure, Of_a_rank_that_waits_for_a_stopped_one_names_that) {
  const Result result = Program("rank_behind_another_is_stopped", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("for: rank 1 at operation"));
  EXPECT_THAT(result.errors, HasSubstr("There is no answer from rank 2: stopped or out of reach."));
}

}  // namespace
}  // namespace d9d::test::peer_failure_test
