// Tests that need a GPU. Without one they skip and say so. The name of their suite ends in Cuda, from which ctest
// derives the label gpu1, and tools/gpu_bundle includes them. For tests of this library's kernels see cuda_test.h.
//
// Example
//   class OffloadCuda : public test::GpuTest {};
//   TEST_F(OffloadCuda, Gives_memory_back) { const at::Tensor x = at::ones({3}, at::kCUDA); ... }
#pragma once

#include <filesystem>

#include <gtest/gtest.h>

#include "d9d/core/device/cuda_runtime.h"

namespace d9d::test {

// Whether this machine has a GPU; for tests that run before any part of CUDA is loaded.
[[nodiscard]] inline bool has_gpu() { return std::filesystem::exists("/dev/nvidiactl"); }

// Loads CUDA before the first test of a program, since LibTorch keeps its first answer to whether there is a device.
class LoadCudaFirst : public ::testing::Environment {
  void SetUp() override { (void)load_cuda(); }
};
inline const ::testing::Environment* const kLoadCudaFirst = ::testing::AddGlobalTestEnvironment(new LoadCudaFirst);

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!load_cuda()) GTEST_SKIP() << "this machine has no GPU";
  }
};

}  // namespace d9d::test
