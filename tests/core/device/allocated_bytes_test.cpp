#include "d9d/core/device/allocated_bytes.h"

#include <optional>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/device/moment.h"

namespace d9d::allocated_bytes_test {
namespace {

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

TEST(AllocatedBytes, Are_those_of_tensors_that_live_and_were_made_since) {
  std::optional<at::Tensor> before = bytes(1000);
  const AllocatedBytes allocated(at::kCPU);
  EXPECT_EQ(allocated.now(), 0);
  std::optional<at::Tensor> first = bytes(300);
  const at::Tensor second = bytes(50);
  EXPECT_EQ(allocated.now(), 350);
  before.reset();
  EXPECT_EQ(allocated.now(), 350);
  first.reset();
  EXPECT_EQ(allocated.now(), 50);
}

TEST(AllocatedBytes, At_their_peak_and_in_total_include_what_was_released) {
  AllocatedBytes allocated(at::kCPU);
  (void)bytes(300);
  const at::Tensor kept = bytes(50);
  (void)bytes(100);
  EXPECT_EQ(allocated.peak(), 300);
  EXPECT_EQ(allocated.total(), 450);
  allocated.reset_peak();
  EXPECT_EQ(allocated.peak(), 50);
  (void)bytes(20);
  EXPECT_EQ(allocated.peak(), 70);
  EXPECT_EQ(allocated.total(), 470);
}

TEST(AllocatedBytes, Of_an_outer_scope_include_those_of_an_inner_one) {
  const AllocatedBytes outer(at::kCPU);
  const at::Tensor first = bytes(300);
  std::optional<AllocatedBytes> inner(at::kCPU);
  const at::Tensor second = bytes(50);
  EXPECT_EQ(inner->now(), 50);
  EXPECT_EQ(outer.now(), 350);
  inner.reset();
  const at::Tensor third = bytes(7);
  EXPECT_EQ(outer.now(), 357);
}

TEST(AllocatedBytes, Leave_out_what_other_threads_allocate) {
  const AllocatedBytes allocated(at::kCPU);
  at::Tensor made;
  std::thread([&] { made = bytes(300); }).join();
  EXPECT_EQ(allocated.now(), 0);
}

TEST(Moment, Of_a_CPU_is_when_it_was_taken) {
  const Moment first(at::kCPU);
  const Moment second(at::kCPU);
  EXPECT_GE(first.seconds_until(second), 0);
  EXPECT_EQ(second.seconds_until(first), -first.seconds_until(second));
  EXPECT_EQ(first.seconds_until(first), 0);
}

}  // namespace
}  // namespace d9d::allocated_bytes_test
