#include "d9d/core/launch/open_files.h"

#include <sys/resource.h>

#include <cstdlib>
#include <iostream>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::open_files_test {
namespace {

// In a process of its own, because the limit is the process's.
[[noreturn]] void print_after_raising(rlim_t soft, rlim_t hard, std::int64_t needed) {
  const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::exit(2);
  try {
    raise_open_files(needed);
    rlimit raised{};
    ::getrlimit(RLIMIT_NOFILE, &raised);
    std::cerr << raised.rlim_cur;
  } catch (const ConfigError& error) {
    std::cerr << error.what();
  }
  std::exit(0);
}

const auto kEnded = ::testing::ExitedWithCode(0);

TEST(OpenFiles, Are_raised_to_what_the_user_may_have) {
  EXPECT_EXIT(print_after_raising(40, 64, 64), kEnded, "^64$");
  EXPECT_EXIT(print_after_raising(64, 64, 1), kEnded, "^64$");
}

TEST(OpenFiles, That_are_too_few_for_the_ranks_are_refused_with_their_number) {
  EXPECT_EXIT(print_after_raising(40, 64, 65), kEnded, "expected a limit of at least 65 open files .*, got 64");
}

TEST(OpenFiles, Of_more_ranks_are_more) { EXPECT_GT(open_files_of(9), open_files_of(8)); }

}  // namespace
}  // namespace d9d::open_files_test
