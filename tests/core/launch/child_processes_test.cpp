#include "d9d/core/launch/child_processes.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/base/interrupt.h"
#include "d9d/base/log.h"
#include "d9d/core/launch/rendezvous.h"

#include "tests/core/launch/exit_code.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace {

bool children_are_slow = false;  // children enter their own process group only after they were told to end

// A slow child that is told to end exits normally; one that is not told is killed after 10 s.
void wait_until_told_to_end() {
  ::alarm(10);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  int signal = 0;
  ::sigwait(&interrupt, &signal);
  ::_exit(0);
}

}  // namespace

// Replaces libc's function in this program.
extern "C" int setpgid(pid_t process, pid_t group) noexcept {
  if (children_are_slow && process == 0) wait_until_told_to_end();
  return static_cast<int>(::syscall(SYS_setpgid, process, group));
}

namespace d9d::test::child_processes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs `body` in each of three ranks.
int run_as_three_ranks(const std::function<void(World&)>& body,
                       std::chrono::milliseconds patience = std::chrono::seconds(2)) {
  return exit_code_of([&] {
    const auto here = rank_environment();
    if (!here) return run_child_processes({.num_ranks = 3, .patience = patience});
    World world(connect_ranks(*here, {.job = "test", .timeout = std::chrono::seconds(30)}));
    try {
      body(world);
    } catch (const std::exception& error) {
      world.abort(cat("rank ", world.rank(), " failed: ", error.what()));
      throw;
    }
    return 0;
  });
}

std::shared_ptr<Communicator> all_of(World& world) { return world.communicator(group_of(world, "all")); }

void expect_sum(World& world) {
  const at::Tensor sum = at::full({3}, world.rank(), at::kLong);
  all_of(world)->all_reduce(sum, ReduceOp::kSum).wait();
  D9D_ASSERT(sum.sum().item<std::int64_t>() == 3 * 3, sum);
}

std::size_t num_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

bool is_running(pid_t process) {
  std::ifstream file(cat("/proc/", process, "/stat"));
  std::string number;
  std::string name;
  std::string state;
  return static_cast<bool>(file >> number >> name >> state) && state != "Z" && state != "X";
}

// A process that is being killed closes its output shortly before it disappears.
bool ends_soon(pid_t process) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (is_running(process) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return !is_running(process);
}

const TestProgram kSum("sum", [] { return run_as_three_ranks(expect_sum); });

TEST(ChildProcesses, Communicate_and_end_quietly_with_0) {
  const Result result = Program("sum", {}).wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.errors, "");
}

const TestProgram kFailingRank("failing_rank", [] {
  return run_as_three_ranks([](World& world) {
    expect_sum(world);
    D9D_CHECK(world.rank() != 1, ConfigError, "[test] the cause.");
    all_of(world)->barrier();
  });
});

TEST(ChildProcesses, Of_a_rank_that_fails_its_error_is_all_there_is) {
  const Result result = Program("failing_rank", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.errors, "error: rank 1 of 3: [test] the cause.\n");
  EXPECT_LT(result.seconds, 20);
}

const TestProgram kRanksFailAlike("ranks_fail_alike", [] {
  return run_as_three_ranks([](World& world) {
    expect_sum(world);
    D9D_CHECK(false, ConfigError, "[test] the same everywhere.");
  });
});

TEST(ChildProcesses, Of_ranks_that_fail_alike_one_speaks) {
  const Result result = Program("ranks_fail_alike", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr(" of 3: [test] the same everywhere.\n"));
  EXPECT_EQ(num_lines(result.errors), 1U) << result.errors;
}

const TestProgram kKilledRank("killed_rank", [] {
  return run_as_three_ranks([](World& world) {
    expect_sum(world);
    if (world.rank() == 2) ::raise(SIGKILL);
    all_of(world)->barrier();
  });
});

TEST(ChildProcesses, Of_a_rank_that_is_killed_the_signal_is_named) {
  const Result result = Program("killed_rank", {}).wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.errors, HasSubstr("rank 2 of 3 (process "));
  EXPECT_THAT(result.errors, HasSubstr(") was killed by signal 9 (Killed)"));
  EXPECT_LT(result.seconds, 20);
}

// Writes its process id, then waits for ever, like a rank that hangs outside of communication.
void write_id_and_hang(World& world) {
  expect_sum(world);
  write_line_to_stderr(cat("rank ", world.rank(), " is ", ::getpid(), ";"));
  ::signal(SIGTERM, SIG_IGN);
  while (true) ::pause();
}

pid_t id_of_rank(const std::string& errors, int rank) {
  const std::string before = cat("rank ", rank, " is ");
  return static_cast<pid_t>(std::stol(errors.substr(errors.find(before) + before.size())));
}

const TestProgram kHangingRanks("hanging_ranks", [] {
  return run_as_three_ranks([](World& world) {
    if (world.rank() != 0) write_id_and_hang(world);
    expect_sum(world);
    throw ConfigError("[test] rank 0 is tired.");
  });
});

TEST(ChildProcesses, Of_a_rank_that_fails_the_others_are_killed_if_they_do_not_end) {
  const Result result = Program("hanging_ranks", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("rank 0 of 3"));
  EXPECT_LT(result.seconds, 20);
  for (const int rank : {1, 2}) EXPECT_TRUE(ends_soon(id_of_rank(result.errors, rank)));
}

const TestProgram kStoppedRank("stopped_rank", [] {
  return run_as_three_ranks(
      [](World& world) {
        expect_sum(world);
        ::signal(SIGTERM, SIG_IGN);  // as a rank does that takes long to end
        if (world.rank() == 1) ::raise(SIGSTOP);
        D9D_CHECK(world.rank() != 0, ConfigError, "[test] rank 0 is tired.");
        all_of(world)->barrier();
      },
      /*patience=*/std::chrono::seconds(50));
});

TEST(ChildProcesses, That_are_stopped_end_with_the_others) {
  const Result result = Program("stopped_rank", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("[test] rank 0 is tired."));
  EXPECT_LT(result.seconds, 30);
}

const TestProgram kAllHang("all_hang", [] { return run_as_three_ranks(write_id_and_hang); });

TEST(ChildProcesses, Die_with_their_supervisor) {
  Program program("all_hang", {});
  for (const int rank : {0, 1, 2}) ASSERT_TRUE(program.has_written(cat("rank ", rank, " is ")));
  program.kill(SIGKILL);
  const Result result = program.wait();  // returns when the last process that holds its output has ended
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(ends_soon(id_of_rank(result.errors, rank)));
  EXPECT_LT(result.seconds, 20);
}

const TestProgram kUntilInterrupted("until_interrupted", [] {
  return run_as_three_ranks([](World& world) {
    const InterruptScope interrupt;
    const auto all = all_of(world);
    write_line_to_stderr(cat("rank ", world.rank(), " trains;"));
    while (true) {
      const at::Tensor stop = at::full({1}, interrupt.requested() ? 1 : 0, at::kLong);
      all->all_reduce(stop, ReduceOp::kMax).wait();
      if (stop.item<std::int64_t>() == 1) return;
    }
  });
});

TEST(ChildProcesses, End_at_a_step_when_the_supervisor_is_interrupted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program("until_interrupted", {});
    for (const int rank : {0, 1, 2}) ASSERT_TRUE(program.has_written(cat("rank ", rank, " trains")));
    program.kill(signal);
    const Result result = program.wait();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_LT(result.seconds, 20);
  }
}

const TestProgram kInterruptedAtOnce("interrupted_at_once", [] {
  children_are_slow = true;
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
  ::raise(SIGINT);
  return run_as_three_ranks([](World&) {});
});

TEST(ChildProcesses, Hear_of_an_interrupt_that_comes_before_they_run) {
  EXPECT_EQ(Program("interrupted_at_once", {}).wait().exit_code, 0);
}

TEST(ChildProcesses, That_do_not_handle_an_interrupt_end_without_a_line) {
  Program program("all_barriers", {});
  for (const int rank : {0, 1, 2}) ASSERT_TRUE(program.has_written(cat("rank ", rank, " waits")));
  program.kill(SIGINT);
  const Result result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_THAT(result.errors, Not(HasSubstr("error")));
}

const TestProgram kAllBarriers("all_barriers", [] {
  return run_as_three_ranks([](World& world) {
    write_line_to_stderr(cat("rank ", world.rank(), " waits;"));
    while (true) all_of(world)->barrier();
  });
});

}  // namespace
}  // namespace d9d::test::child_processes_test
