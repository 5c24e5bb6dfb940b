#include "d9d/core/device/host_copy.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "tests/support/gpu_test.h"

namespace d9d::host_copy_test {
namespace {

TEST(HostCopy, Of_a_CPU_is_the_tensor) {
  const at::Tensor values = at::arange(3, at::kDouble);
  EXPECT_TRUE(HostCopy(values, SideStream(at::kCPU)).wait().is_same(values));
}

class HostCopyCuda : public test::GpuTest {};

TEST_F(HostCopyCuda, Has_the_numbers_of_its_moment_while_the_device_goes_on) {
  const at::Device device(at::kCUDA, 0);
  const SideStream copies(device);
  const at::Tensor big = at::ones({8192, 8192}, at::device(device).dtype(at::kBFloat16));
  at::Tensor product = at::mm(big, big);  // loads LibTorch's product
  const at::Tensor values = at::arange(3, at::device(device).dtype(at::kDouble));
  const HostCopy copy(values + 1, copies);  // of a temporary, which the copy keeps alive
  for (int i = 0; i < 100; ++i) at::mm_out(product, big, big);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  const at::Tensor numbers = copy.wait();
  EXPECT_FALSE(stream.query());  // the products are still running
  EXPECT_TRUE(at::equal(numbers, at::arange(3, at::kDouble) + 1));
  EXPECT_TRUE(numbers.is_cpu());
}

}  // namespace
}  // namespace d9d::host_copy_test
