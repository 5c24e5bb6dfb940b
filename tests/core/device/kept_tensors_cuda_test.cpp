#include <optional>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "d9d/core/device/kept_tensors.h"

#include "tests/support/gpu_test.h"
#include "tests/support/stream_gate.h"

namespace d9d::test::kept_tensors_cuda_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);
constexpr std::int64_t kMebibyte = 1 << 20, kNumMessages = 64;

class KeptTensorsCuda : public GpuTest {};

std::int64_t peak_bytes() {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).allocated_bytes[kAll].peak;
}

// The reader does nothing until all is queued. What it reads then is what was written, in the memory of three tensors.
TEST_F(KeptTensorsCuda, Take_no_more_memory_however_far_the_host_is_ahead) {
  const SideStream reads(kGpu);
  const at::Tensor sums = at::zeros({kNumMessages}, at::TensorOptions(kGpu).dtype(at::kLong));
  const at::Tensor scratch = at::empty({kMebibyte}, at::TensorOptions(kGpu).dtype(at::kByte));
  const auto read = [&](const at::Tensor& message, std::int64_t i) {
    scratch.copy_(message);
    sums[i].copy_(scratch[kMebibyte - 1]);
  };
  read(at::full({kMebibyte}, 0, at::TensorOptions(kGpu).dtype(at::kByte)),
       0);  // loads kernels, which waits for the device
  at::accelerator::synchronizeDevice(0);
  c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
  const std::int64_t before = peak_bytes();
  std::optional<StreamGate> gate;
  (void)reads.run([&] { gate.emplace(kGpu); });
  KeptTensors kept;
  for (std::int64_t i = 0; i < kNumMessages; ++i) {
    kept.wait_for_all_but(2);
    const at::Tensor message = at::full({kMebibyte}, i + 1, at::TensorOptions(kGpu).dtype(at::kByte));
    kept.keep({message}, reads.run([&] { read(message, i); }));
  }
  EXPECT_LE(peak_bytes() - before, 3 * kMebibyte + kMebibyte / 2);
  gate->open();
  kept.wait_for_all();
  EXPECT_TRUE(at::equal(sums.cpu(), at::arange(1, kNumMessages + 1)));
}

}  // namespace
}  // namespace d9d::test::kept_tensors_cuda_test
