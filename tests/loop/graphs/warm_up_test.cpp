#include "d9d/loop/graphs/warm_up.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>

#include "tests/support/gpu_test.h"

namespace d9d::warm_up_test {
namespace {

TEST(WarmUp, Of_a_CPU_is_nothing) { EXPECT_FALSE(start_warm_up(at::kCPU).joinable()); }

class WarmUpCuda : public test::GpuTest {};

TEST_F(WarmUpCuda, Works_beside_the_program_without_a_word_and_keeps_little_memory) {
  const at::Device device(at::kCUDA, 0);
  ::testing::internal::CaptureStderr();
  std::jthread warm_up = start_warm_up(device);
  ASSERT_TRUE(warm_up.joinable());
  const at::Tensor a = at::ones({64, 64}, at::device(device).dtype(at::kBFloat16));
  EXPECT_EQ(at::mm(a, a).sum().item<float>(), 64.0F * 64 * 64);
  warm_up.join();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  at::accelerator::synchronizeDevice(0);
  EXPECT_LT(at::accelerator::getDeviceStats(0).allocated_bytes[0].current, std::int64_t{128} << 20);  // workspaces
}

}  // namespace
}  // namespace d9d::warm_up_test
