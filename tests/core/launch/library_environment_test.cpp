#include "d9d/core/launch/library_environment.h"

#include <cstdlib>
#include <iostream>

#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"

namespace d9d::library_environment_test {
namespace {

constexpr const char* kDumpMilliseconds = "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC";
constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";

// Each runs in a process of its own, because the environment is the process's.
[[noreturn]] void print_after_setting(const char* name, const char* of_user, bool is_deterministic) {
  ::unsetenv(name);
  if (of_user != nullptr) ::setenv(name, of_user, /*overwrite=*/1);
  set_library_environment(is_deterministic);
  std::cerr << environment_variable(name).value_or("not set");
  std::exit(0);
}

const auto kEnded = ::testing::ExitedWithCode(0);

TEST(LibraryEnvironment, Is_set_where_the_user_has_set_nothing) {
  EXPECT_EXIT(print_after_setting(kDumpMilliseconds, nullptr, false), kEnded, "^0$");
  EXPECT_EXIT(print_after_setting(kWorkspace, nullptr, true), kEnded, "^:4096:8$");
}

TEST(LibraryEnvironment, Keeps_what_the_user_has_set) {
  EXPECT_EXIT(print_after_setting(kDumpMilliseconds, "7", false), kEnded, "^7$");
  EXPECT_EXIT(print_after_setting(kWorkspace, ":16:8", true), kEnded, "^:16:8$");
}

TEST(LibraryEnvironment, Gives_each_rank_that_shares_a_GPU_another_machine_for_NCCL) {
  for (const std::int64_t rank : {0, 3}) {
    EXPECT_EXIT(
        {
          ::unsetenv("NCCL_HOSTID");
          let_ranks_share_gpus(rank);
          std::cerr << environment_variable("NCCL_HOSTID").value_or("not set");
          std::exit(0);
        },
        kEnded, cat("^rank ", rank, "$"));
  }
}

TEST(LibraryEnvironment, Lets_threads_of_OpenMP_spin_for_a_while_unless_the_user_says_how_long) {
  ::unsetenv("OMP_WAIT_POLICY");
  EXPECT_EXIT(print_after_setting("GOMP_SPINCOUNT", nullptr, false), kEnded, "^10000$");
  EXPECT_EXIT(print_after_setting("GOMP_SPINCOUNT", "7", false), kEnded, "^7$");
  EXPECT_EXIT(
      {
        ::setenv("OMP_WAIT_POLICY", "active", /*overwrite=*/1);
        print_after_setting("GOMP_SPINCOUNT", nullptr, false);
      },
      kEnded, "^not set$");
}

TEST(LibraryEnvironment, Starts_no_program_anew_whose_arguments_it_did_not_get) {
  const char* const arguments[] = {"another", "program"};
  EXPECT_EXIT(
      {
        ::unsetenv("GOMP_SPINCOUNT");
        ::unsetenv("OMP_WAIT_POLICY");
        restart_with_short_spins(2, arguments);
        std::cerr << "here";
        std::exit(0);
      },
      kEnded, "^here$");
}

TEST(LibraryEnvironment, Leaves_cuBLAS_alone_where_sums_may_vary) {
  EXPECT_EXIT(print_after_setting(kWorkspace, nullptr, false), kEnded, "^not set$");
}

}  // namespace
}  // namespace d9d::library_environment_test
