// Pinned host memory; that of malloc is in tests/loop/run/logging_test.cpp.
#include "d9d/core/device/freed_memory.h"

#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>

#include "tests/support/gpu_test.h"

namespace d9d::freed_memory_test {
namespace {

std::int64_t pinned_bytes() { return at::getHostAllocator(at::kCUDA)->get_stats().allocated_bytes.current; }

class FreedMemoryCuda : public test::GpuTest {};

TEST_F(FreedMemoryCuda, Of_pinned_tensors_is_returned_and_that_in_use_is_kept) {
  constexpr std::int64_t kSize = 32 << 20;
  const auto pinned = [] { return at::empty({kSize}, at::TensorOptions(at::kByte).pinned_memory(true)); };
  return_freed_memory(at::Device(at::kCUDA, 0));
  const std::int64_t before = pinned_bytes();
  std::optional<at::Tensor> freed = pinned();
  const at::Tensor used = pinned();
  freed.reset();
  EXPECT_EQ(pinned_bytes(), before + 2 * kSize);  // LibTorch keeps the memory
  return_freed_memory(at::kCPU);
  EXPECT_EQ(pinned_bytes(), before + 2 * kSize);
  return_freed_memory(at::Device(at::kCUDA, 0));
  EXPECT_EQ(pinned_bytes(), before + kSize);
}

}  // namespace
}  // namespace d9d::freed_memory_test
