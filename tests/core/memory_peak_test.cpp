// Tests the scope with which other tests measure memory.
#include "tests/support/memory_peak.h"

#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::memory_peak_test {
namespace {
using test::MemoryPeak;

at::Tensor of_bytes(std::int64_t bytes) { return at::empty({bytes}, at::kByte); }

TEST(MemoryPeak, Is_the_most_that_was_held_at_once) {
  const MemoryPeak memory;
  at::Tensor kept = of_bytes(100);
  of_bytes(1000).reset();
  const at::Tensor other = of_bytes(10);
  EXPECT_EQ(memory.live_bytes(), 110);
  EXPECT_EQ(memory.peak_bytes(), 1100);
  kept.reset();
  EXPECT_EQ(memory.live_bytes(), 10);
}

TEST(MemoryPeak, Ignores_the_release_of_what_was_there_before) {
  at::Tensor before = of_bytes(100);
  const MemoryPeak outer;
  at::Tensor in_outer = of_bytes(20);
  const MemoryPeak inner;
  before.reset();
  in_outer.reset();
  EXPECT_EQ(inner.live_bytes(), 0);
  EXPECT_EQ(outer.live_bytes(), 0);
}

TEST(MemoryPeak, Of_an_outer_scope_includes_the_inner_one) {
  const MemoryPeak outer;
  const at::Tensor first = of_bytes(5);
  {
    const MemoryPeak inner;
    of_bytes(50).reset();
    EXPECT_EQ(inner.peak_bytes(), 50);
  }
  EXPECT_EQ(outer.peak_bytes(), 55);
  EXPECT_EQ(outer.live_bytes(), 5);
}

TEST(MemoryPeak, Does_not_see_other_threads) {
  const MemoryPeak memory;
  std::thread([] { of_bytes(1000).reset(); }).join();
  EXPECT_EQ(memory.peak_bytes(), 0);
}

TEST(MemoryPeak, Counts_backward) {
  const at::Tensor x = at::ones({64}).set_requires_grad(true);
  const MemoryPeak memory;
  x.exp().sum().backward();
  EXPECT_EQ(memory.live_bytes(), 64 * 4);
  EXPECT_GE(memory.peak_bytes(), 2 * 64 * 4);
}

}  // namespace
}  // namespace d9d::memory_peak_test
