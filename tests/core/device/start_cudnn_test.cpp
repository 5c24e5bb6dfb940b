#include "d9d/core/device/start_cudnn.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/gpu_test.h"

namespace d9d::start_cudnn_test {
namespace {

TEST(StartCudnn, On_a_CPU_is_nothing) { EXPECT_FALSE(start_cudnn(at::kCPU).joinable()); }

class StartCudnnCuda : public test::GpuTest {};

TEST_F(StartCudnnCuda, Shares_the_context_with_LibTorch_and_may_run_twice) {
  const c10::Device device(c10::kCUDA, 0);
  std::jthread cudnn = start_cudnn(device);
  std::jthread again = start_cudnn(device);
  ASSERT_TRUE(cudnn.joinable());
  EXPECT_EQ(at::ones({3}, at::device(device)).sum().item<float>(), 3);
}

}  // namespace
}  // namespace d9d::start_cudnn_test
