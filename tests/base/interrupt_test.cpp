#include "d9d/base/interrupt.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace d9d::interrupt_test {
namespace {

using ::testing::HasSubstr;

struct ChildResult {
  int wait_status = 0;
  std::string standard_error;
};

// Runs `body` in a child process, whose exit code is the return value of `body`.
ChildResult run_in_child(const std::function<int()>& body) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // ends the child even if no other signal does
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::_exit(body());
  }
  ::close(ends[1]);
  ChildResult result;
  std::array<char, 256> buffer{};
  for (ssize_t count = 0; (count = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
    result.standard_error.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(child, &result.wait_status, 0), child);
  return result;
}

class Interrupt : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, Interrupt, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& parameter) { return parameter.param == SIGINT ? "SIGINT" : "SIGTERM"; });

TEST_P(Interrupt, First_signal_sets_the_flag_and_says_so_in_one_line) {
  const ChildResult result = run_in_child([] {
    const InterruptScope interrupt;
    const bool requested_before = interrupt.requested();
    ::raise(GetParam());
    return !requested_before && interrupt.requested() ? 7 : 1;
  });
  ASSERT_TRUE(WIFEXITED(result.wait_status));
  EXPECT_EQ(WEXITSTATUS(result.wait_status), 7);
  EXPECT_EQ(result.standard_error, "stopping after this step; press Ctrl-C again to stop at once\n");
}

TEST_P(Interrupt, Second_signal_ends_the_process_at_once_as_killed_by_it) {
  const ChildResult result = run_in_child([] {
    const InterruptScope interrupt;
    ::raise(SIGINT);
    ::raise(GetParam());
    return 1;
  });
  ASSERT_TRUE(WIFSIGNALED(result.wait_status));
  EXPECT_EQ(WTERMSIG(result.wait_status), GetParam());
}

TEST(InterruptScope, Gives_the_signals_back_when_it_ends) {
  const ChildResult result = run_in_child([] {
    { const InterruptScope interrupt; }
    ::raise(SIGTERM);
    return 1;
  });
  ASSERT_TRUE(WIFSIGNALED(result.wait_status));
  EXPECT_EQ(WTERMSIG(result.wait_status), SIGTERM);
  EXPECT_EQ(result.standard_error, "");
}

TEST(InterruptScope, Leaves_signals_to_who_had_them_before_it_lives) {
  const ChildResult result = run_in_child([] {
    ::signal(SIGTERM, [](int) { ::_exit(7); });
    install_interrupt_handlers();
    ::raise(SIGTERM);
    return 1;
  });
  EXPECT_EQ(WEXITSTATUS(result.wait_status), 7);
  EXPECT_EQ(result.standard_error, "");
}

TEST(InterruptScope, Gives_back_what_another_took_between_two_scopes) {
  const ChildResult result = run_in_child([] {
    { const InterruptScope first; }
    ::signal(SIGTERM, [](int) { ::_exit(7); });
    {
      const InterruptScope second;
      ::raise(SIGTERM);
      if (!second.requested()) return 1;
    }
    ::raise(SIGTERM);
    return 1;
  });
  EXPECT_EQ(WEXITSTATUS(result.wait_status), 7);
}

// The other thread behaves like NVRTC while it compiles.
TEST(InterruptScope, Keeps_signals_that_another_thread_takes_for_a_while_and_gives_back) {
  const ChildResult result = run_in_child([] {
    install_interrupt_handlers();
    const auto found = ::signal(SIGTERM, [](int) { ::_exit(1); });
    const InterruptScope interrupt;
    ::signal(SIGTERM, found);
    ::raise(SIGTERM);
    return interrupt.requested() ? 7 : 1;
  });
  EXPECT_EQ(WEXITSTATUS(result.wait_status), 7);
}

TEST(InterruptScope, Starts_without_a_request_after_an_interrupted_one) {
  const ChildResult result = run_in_child([] {
    {
      const InterruptScope interrupt;
      ::raise(SIGINT);
    }
    const InterruptScope interrupt;
    return interrupt.requested() ? 1 : 7;
  });
  EXPECT_EQ(WEXITSTATUS(result.wait_status), 7);
}

TEST(InterruptScope, Shares_the_flag_with_scopes_that_live_at_the_same_time) {
  const InterruptScope outer;
  {
    const InterruptScope inner;
    ::raise(SIGINT);
    EXPECT_TRUE(inner.requested());
  }
  EXPECT_TRUE(outer.requested());
}

}  // namespace
}  // namespace d9d::interrupt_test
