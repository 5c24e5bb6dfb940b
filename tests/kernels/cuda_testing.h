// Shared by the tests of operators with CUDA kernels. They skip unless a GPU has these kernels.
//
// Example
//   class RmsNormCuda : public testing::CudaTest {};
//   TEST_F(RmsNormCuda, Errs_no_more_than_ATen) {
//     EXPECT_EQ(worse_than_composition(op, composition, {device_values({3, 5}, 1, at::kBFloat16)}), "");
//   }
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tests/kernels/op_testing.h"
#include "tests/support/cuda_test.h"

namespace d9d::testing {

using test::CudaTest;

inline const at::Device kGpu(at::kCUDA, 0);

// All dtypes that have kernels.
inline const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

[[nodiscard]] at::Tensor device_values(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype = at::kDouble);

// [sizes], values in [-1, 1) determined by position, computed on the device.
[[nodiscard]] at::Tensor ramp(at::IntArrayRef sizes, double step, at::ScalarType dtype);

// Returns the outputs of `function`, then the gradients of the inputs, for random output gradients determined by the
// seed.
[[nodiscard]] std::vector<at::Tensor> outputs_and_gradients(const TensorFunction& function,
                                                            const std::vector<at::Tensor>& inputs);

// Runs `op` and the composition of ATen operators, forward and backward, and the composition in fp64. Names the first
// result of `op` whose error is more than twice that of the composition in the inputs' dtypes and more than one
// rounding of its own dtype, or that has another shape or dtype, or that a second run does not repeat bit for bit.
// Empty if there is none.
[[nodiscard]] std::string worse_than_composition(const TensorFunction& op, const TensorFunction& composition,
                                                 const std::vector<at::Tensor>& inputs);

// The L2 distance of every tensor from `exact` must be at most tolerance("kernel error ratio") times that of the peer's
// tensor, or at most the worst case of rounding every element once.
void expect_no_worse(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& peer,
                     const std::map<std::string, at::Tensor>& exact);

// Whether all results of two functions of the same inputs are equal bit for bit.
[[nodiscard]] bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

// Peak number of bytes of tensors on the device that `work` allocates in addition to existing ones.
[[nodiscard]] std::int64_t peak_bytes(const std::function<void()>& work);

// Free memory of the device, including unused segments of the allocator.
[[nodiscard]] std::int64_t free_bytes();

// Runs `body`; false if the device has too little memory for it.
[[nodiscard]] bool fits_into_memory(const std::function<void()>& body);

}  // namespace d9d::testing
