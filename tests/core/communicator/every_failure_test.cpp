// The error that a rank gets if the other one hangs, gives up, calls another operation or is killed, at every
// operation.
#include <signal.h>

#include <chrono>
#include <latch>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/launch/child_processes.h"
#include "d9d/core/launch/rendezvous.h"

#include "tests/core/communicator/every_operation.h"
#include "tests/core/launch/exit_code.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace d9d::test::every_failure_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr milliseconds kTimeout{300};
// Time from the failure, or the end of the timeout, until all ranks know of it.
constexpr std::chrono::seconds kPromise{5};

class EveryFailure : public ::testing::TestWithParam<std::tuple<RankBackend, Operation>> {
 protected:
  struct Told {
    std::string message;  // of rank 0's CommunicationError
    std::chrono::steady_clock::duration after = {};
  };
  // Both ranks do the operation once. Then rank 0 does it again, and rank 1 runs `fails`, and returns when rank 0 has
  // been told or, if it `returns`, at once.
  static Told told(milliseconds timeout, const std::function<void(World&, Communicator&)>& fails,
                   bool returns = false) {
    Told result;
    std::latch is_told(1);
    run_ranks(std::get<RankBackend>(GetParam()), 2, [&](World& world) {
      const auto group = world.communicator(group_of(world, "all"));
      operation().run(*group, 4);
      world.set_timeout(timeout);
      const auto begin = std::chrono::steady_clock::now();
      try {
        world.rank() == 0 ? operation().run(*group, 4) : fails(world, *group);
      } catch (const CommunicationError& error) {
        if (world.rank() == 0) result = {.message = error.what(), .after = std::chrono::steady_clock::now() - begin};
      }
      if (world.rank() == 0) is_told.count_down();
      if (world.rank() == 1 && !returns) is_told.wait();
    });
    return result;
  }
  static const Operation& operation() { return std::get<Operation>(GetParam()); }
};

TEST_P(EveryFailure, Of_a_rank_that_does_not_come_is_told_in_time) {
  const Told rank0 = told(kTimeout, [](World&, Communicator&) {});
  EXPECT_THAT(rank0.message, AllOf(HasSubstr("waited 0.3 s in group 'all'"), HasSubstr("rank 1")));
  EXPECT_LT(rank0.after, kTimeout + kPromise);
}

TEST_P(EveryFailure, Of_a_rank_that_has_returned_is_told_at_once) {
  if (std::get<RankBackend>(GetParam()) != RankBackend::kThreads) GTEST_SKIP() << "its connections close";
  const Told rank0 = told(
      std::chrono::hours(1), [](World&, Communicator&) {}, /*returns=*/true);
  EXPECT_THAT(rank0.message, AllOf(HasSubstr("rank 1"), HasSubstr("whose program has returned")));
  EXPECT_LT(rank0.after, kPromise);
}

TEST_P(EveryFailure, Of_a_rank_that_gives_up_is_told_at_once) {
  const Told rank0 = told(std::chrono::hours(1), [](World& world, Communicator&) { world.abort("rank 1 is sad"); });
  EXPECT_THAT(rank0.message, HasSubstr("rank 1 is sad"));
  EXPECT_LT(rank0.after, kPromise);
}

TEST_P(EveryFailure, Of_a_rank_that_does_something_else_is_told) {
  const bool is_barrier = operation().name == "barrier";
  const Told rank0 = told(kTimeout, [&](World&, Communicator& group) {
    if (is_barrier) group.all_reduce(at::ones({4}), ReduceOp::kSum).wait();
    if (!is_barrier) group.barrier();
  });
  EXPECT_THAT(rank0.message, AllOf(HasSubstr("'all'"), HasSubstr("rank 1")));
  EXPECT_LT(rank0.after, kTimeout + kPromise);
}

TEST_P(EveryFailure, Of_a_rank_that_brings_another_shape_is_told) {
  if (!operation().has_shape) GTEST_SKIP() << "takes any shape, or none";
  const Told rank0 = told(kTimeout, [](World&, Communicator& group) { operation().run(group, 7); });
  EXPECT_THAT(rank0.message, AnyOf(HasSubstr("'all'"), HasSubstr("[7]")));
  EXPECT_LT(rank0.after, kTimeout + kPromise);
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<RankBackend, Operation>>& info) {
  return cat(to_string(std::get<RankBackend>(info.param)), "_", std::get<Operation>(info.param).name);
}

INSTANTIATE_TEST_SUITE_P(At, EveryFailure,
                         ::testing::Combine(::testing::Values(RankBackend::kThreads, RankBackend::kGloo),
                                            ::testing::ValuesIn(every_operation())),
                         name_of);

// Runs the operation with the number D9D_TEST_OPERATION; rank 1 is killed when rank 0 begins it.
const TestProgram kKilled("killed_at_an_operation", [] {
  return exit_code_of([] {
    const auto here = rank_environment();
    if (!here) return run_child_processes({.num_ranks = 2});
    World world(connect_ranks(*here, {.job = "test", .timeout = std::chrono::seconds(30)}));
    const auto group = world.communicator(group_of(world, "all"));
    const auto number = std::stoul(environment_variable("D9D_TEST_OPERATION").value());
    const Operation operation = every_operation().at(number);
    operation.run(*group, 4);
    if (here->rank == 1) ::raise(SIGKILL);
    operation.run(*group, 4);
    return 0;
  });
});

class EveryKill : public ::testing::TestWithParam<std::size_t> {};

TEST_P(EveryKill, Ends_the_job_and_names_the_rank) {
  const Result result = Program("killed_at_an_operation", {{"D9D_TEST_OPERATION", cat(GetParam())}}).wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("rank 1 of 2 (process "));
  EXPECT_LT(result.seconds, 20);
}

INSTANTIATE_TEST_SUITE_P(At, EveryKill, ::testing::Range(std::size_t{0}, every_operation().size()),
                         [](const auto& param_info) { return every_operation().at(param_info.param).name; });

}  // namespace
}  // namespace d9d::test::every_failure_test
