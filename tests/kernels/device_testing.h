// What tests of operators on a GPU share. They skip where there is none.
//
// Example
//   class RmsNormCuda : public testing::CudaTest {};
//   TEST_F(RmsNormCuda, Equals_fp64) { const at::Tensor x = values({3, 5}, 1).to(kGpu); ... }
#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include "tests/kernels/cuda_testing.h"

namespace d9d::testing {

inline const at::Device kGpu(at::kCUDA, 0);

// The L2 distance of every tensor from `exact` is at most tolerance("kernel error ratio") times that of the peer's, or
// that of rounding every element once at worst.
void expect_no_worse(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& peer,
                     const std::map<std::string, at::Tensor>& exact);

// Bytes of tensors on the device that `work` needs at once beside those that exist.
[[nodiscard]] std::int64_t peak_bytes(const std::function<void()>& work);

// Free memory of the device, the allocator's unused segments included.
[[nodiscard]] std::int64_t free_bytes();

// [sizes], values in [-1, 1) that its position decides, made on the device.
[[nodiscard]] at::Tensor ramp(at::IntArrayRef sizes, double step, at::ScalarType dtype);

}  // namespace d9d::testing
