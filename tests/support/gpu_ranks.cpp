#include "tests/support/gpu_ranks.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/launch/library_environment.h"
#include "d9d/core/launch/rendezvous.h"

#include "tests/support/free_port.h"
#include "tests/support/program.h"

namespace d9d::test {
namespace {

constexpr const char* kTest = "D9D_TEST_OF_RANK";
constexpr const char* kCall = "D9D_TEST_CALL_OF_RANK";  // which call of run_gpu_ranks in the test this rank belongs to

// The program of each rank's process.
const TestProgram kRankOfATest("rank_of_a_test", [] {
  ::dup2(STDERR_FILENO, STDOUT_FILENO);  // the waiting test reads stderr
  int argc = 1;
  std::string name = "rank";
  char* argv[] = {name.data(), nullptr};
  ::testing::InitGoogleTest(&argc, argv);
  GTEST_FLAG_SET(filter, environment_variable(kTest).value());
  return RUN_ALL_TESTS() == 0 ? 3 : 4;  // a rank ends within its call
});

std::string name_of_test() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return cat(test->test_suite_name(), ".", test->name());
}

// Counts the calls within the running test.
std::int64_t next_call() {
  static std::string test;
  static std::int64_t num_calls = 0;
  if (test != name_of_test()) {
    test = name_of_test();
    num_calls = 0;
  }
  return num_calls++;
}

std::int64_t ranks_per_gpu() { return std::stoll(environment_variable("D9D_TEST_RANKS_PER_GPU").value_or("1")); }

int run_as_rank(const RankEnvironment& here, const std::function<void(World&)>& body) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(here.rank / ranks_per_gpu()));
  if (ranks_per_gpu() > 1) let_ranks_share_gpus(here.rank);
  set_library_environment(/*is_deterministic=*/false);
  try {
    D9D_CHECK(load_cuda(), StateError, "[test::gpu_ranks] expected a GPU, got none.");
    c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
    World world(connect_ranks(here, {.device = device, .job = "test", .timeout = std::chrono::seconds(30)}));
    try {
      body(world);
    } catch (const std::exception& error) {
      world.abort(cat("rank ", here.rank, " failed: ", error.what()));
      throw;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return ::testing::Test::HasFailure() ? 2 : 0;
}

}  // namespace

bool has_gpus(std::int64_t num) { return num_cuda_devices() * ranks_per_gpu() >= num; }

bool is_gpu_rank() { return environment_variable(kCall).has_value(); }

void run_gpu_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body) {
  const std::int64_t call = next_call();
  if (const auto mine = environment_variable(kCall)) {
    if (*mine == std::to_string(call)) std::_Exit(run_as_rank(*rank_environment(), body));
    return;
  }
  const std::uint16_t port = free_port();
  std::vector<std::unique_ptr<Program>> ranks;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    const std::string number = std::to_string(rank), all = std::to_string(num_ranks);
    ranks.push_back(std::make_unique<Program>("rank_of_a_test", Program::Variables{{kTest, name_of_test()},
                                                                                   {kCall, std::to_string(call)},
                                                                                   {"RANK", number},
                                                                                   {"WORLD_SIZE", all},
                                                                                   {"LOCAL_RANK", number},
                                                                                   {"LOCAL_WORLD_SIZE", all},
                                                                                   {"MASTER_ADDR", "127.0.0.1"},
                                                                                   {"MASTER_PORT", cat(port)}}));
  }
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    const Result result = ranks[static_cast<std::size_t>(rank)]->wait();
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.errors;
  }
}

}  // namespace d9d::test
