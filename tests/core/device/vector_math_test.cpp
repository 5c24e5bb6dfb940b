// Tests when MKL detects the processor. MKL first writes a number that its tables do not contain; a thread that reads
// it before the second write computes with half the digits.
#include "d9d/core/device/vector_math.h"

#include <dlfcn.h>

#include <atomic>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/launch/launch.h"
#include "d9d/core/launch/thread_ranks.h"

#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace {
std::atomic<int> num_detections = 0;
}

// MKL's own function, which its vector mathematics calls before the first result of a process: counts the call, then
// forwards it.
extern "C" __attribute__((visibility("default"))) int mkl_serv_vml_cpu_detect() {
  ++num_detections;
  static const auto original = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  return original();
}

namespace d9d::test::vector_math_test {
namespace {

constexpr int kChosenBefore = 10, kChosenByThreads = 11;

// Counts detections on ranks, before and after their first exponential.
int watch_first_exponential() {
  const int before = num_detections;
  (void)at::ones({8}).exp();
  return before == 1 && num_detections == 1 ? kChosenBefore : kChosenByThreads;
}

int run_launched(const DeviceMeshParameters& mesh) {
  std::atomic<int> worst = 0;
  const int exit_code = launch({.device = DeviceChoice::kCpu}, mesh,
                               [&](DistContext&) { worst = std::max(worst.load(), watch_first_exponential()); });
  return exit_code == 0 ? worst.load() : exit_code;
}

const TestProgram kRanks("first_exponential_of_ranks", [] { return run_launched({.data_parallel_shard = 4}); });
const TestProgram kOne("first_exponential_of_one_rank", [] { return run_launched({}); });
const TestProgram kOwnThreads("first_exponential_of_threads_without_launch", [] {
  std::atomic<int> worst = 0;
  run_thread_ranks(3,
                   [&](const std::shared_ptr<World>&) { worst = std::max(worst.load(), watch_first_exponential()); });
  return worst.load();
});
const TestProgram kOwnContext("first_exponential_with_a_context_without_launch", [] {
  const DistContext context({.world = lone_rank(0, 1)});
  return watch_first_exponential();
});

class FirstExponential : public ::testing::TestWithParam<const char*> {};

TEST_P(FirstExponential, Comes_after_the_processor_is_known) {
  if (!at::hasMKL()) GTEST_SKIP() << "LibTorch without MKL";
  const Result result = Program(cat("first_exponential_", GetParam()), {}).wait();
  EXPECT_EQ(result.exit_code, kChosenBefore) << result.errors;
}

INSTANTIATE_TEST_SUITE_P(Of, FirstExponential,
                         ::testing::Values("of_ranks", "of_one_rank", "of_threads_without_launch",
                                           "with_a_context_without_launch"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace d9d::test::vector_math_test
