// Tests of code with CUDA kernels of this library: as gpu_test.h, but they also skip if this build has none for the
// GPU.
//
// Example
//   class RmsNormCuda : public test::CudaTest {};
//   TEST_F(RmsNormCuda, Equals_fp64) { const at::Tensor x = values({3, 5}, 1).cuda(); ... }
#pragma once

#include "d9d/kernels/common/cuda_kernels.h"

#include "tests/support/gpu_test.h"

namespace d9d::test {

class CudaTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!kernels::detail::has_cuda_kernels(c10::Device(c10::kCUDA, 0))) {
      GTEST_SKIP() << "this build has no kernels for this GPU";
    }
  }
};

}  // namespace d9d::test
