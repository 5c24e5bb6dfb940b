#include "d9d/core/launch/waiting_threads.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace d9d::waiting_threads_test {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kPeriod = 500ms;
constexpr int kNumCores = 4;

// Takes a core until it is killed.
const d9d::test::TestProgram kBusy("busy core", [] {
  for (;;) {
  }
  return 0;
});

CoreUse use(std::chrono::milliseconds running, std::chrono::milliseconds waiting) {
  return {.running = running, .waiting = waiting};
}

TEST(CrowdedCores, Are_taken_at_once_and_free_when_that_lasts) {
  CrowdedCores cores(kNumCores);
  EXPECT_FALSE(cores.measure(use(990ms, 10ms), kPeriod));
  EXPECT_FALSE(cores.measure(use(920ms, 80ms), kPeriod));  // between both limits nothing changes
  EXPECT_TRUE(cores.measure(use(600ms, 400ms), kPeriod));
  EXPECT_TRUE(cores.measure(use(920ms, 80ms), kPeriod));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(cores.measure(use(1000ms, 1ms), kPeriod)) << i;
  EXPECT_TRUE(cores.measure(use(920ms, 80ms), kPeriod));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(cores.measure(use(1000ms, 1ms), kPeriod)) << i;
  EXPECT_FALSE(cores.measure(use(1000ms, 1ms), kPeriod));
}

TEST(CrowdedCores, Say_nothing_while_the_process_does_little) {
  CrowdedCores cores(kNumCores);
  EXPECT_FALSE(cores.measure(use(10ms, 90ms), kPeriod));
  EXPECT_TRUE(cores.measure(use(60ms, 70ms), kPeriod));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(cores.measure(use(10ms, 0ms), kPeriod)) << i;
}

TEST(CrowdedCores, Are_not_taken_by_the_process_itself) {
  CrowdedCores cores(2);
  EXPECT_FALSE(cores.measure(use(950ms, 450ms), kPeriod));
  EXPECT_TRUE(cores.measure(use(500ms, 450ms), kPeriod));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(cores.measure(use(950ms, 450ms), kPeriod)) << i;
  EXPECT_FALSE(cores.measure(use(950ms, 450ms), kPeriod));
}

std::ptrdiff_t num_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

// Whether `condition` becomes true within 20 seconds.
bool becomes_true(const auto& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return condition();
}

// Programs that compute without pause take the cores from two threads for each core.
TEST(WaitingThreads, Are_told_to_sleep_once_cores_are_taken) {
  at::set_num_threads(2);
  (void)at::ones({1 << 20}).add(1);  // loads and starts what computes
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const std::ptrdiff_t before = num_threads();
  std::atomic<int> num_lines = 0;
  std::string line;
  std::atomic<bool> ends = false;
  std::vector<std::unique_ptr<d9d::test::Program>> programs;
  std::vector<std::jthread> busy;
  for (int i = 0; i < 2 * cores; ++i) {
    programs.push_back(std::make_unique<d9d::test::Program>("busy core", d9d::test::Program::Variables()));
    busy.emplace_back([&] {
      while (!ends) {
      }
    });
  }
  {
    const WaitingThreads waiting(Logger({.sink = [&](std::string_view text) {
      line = text;
      ++num_lines;
      num_lines.notify_all();
    }}));
    num_lines.wait(0);
    EXPECT_TRUE(becomes_true([&] { return num_threads() > before + 2 * cores + cores; }));
    ends = true;
    busy.clear();
    programs.clear();
  }
  EXPECT_EQ(num_lines, 1);
  EXPECT_THAT(line, HasSubstr("WARNING - other work takes cores of this job, whose threads waited for one "));
  // Nothing of it is left. A thread that ended stays listed for a moment after who waits for its end goes on.
  EXPECT_TRUE(becomes_true([&] { return num_threads() <= before; }));
}

}  // namespace
}  // namespace d9d::waiting_threads_test
