// What the tests of operators with CUDA kernels share. They skip where no GPU has these kernels.
//
// Example
//   class RmsNormCuda : public testing::CudaTest {};
//   TEST_F(RmsNormCuda, Errs_no_more_than_ATen) {
//     EXPECT_EQ(worse_than_composition(op, composition, {device_values({3, 5}, 1, at::kBFloat16)}), "");
//   }
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/op_testing.h"

namespace d9d::testing {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// All the dtypes that have kernels.
inline const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

[[nodiscard]] at::Tensor device_values(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype = at::kDouble);

// Outputs of `function`, then the gradients of the inputs, with random output gradients that the seed decides.
[[nodiscard]] std::vector<at::Tensor> outputs_and_gradients(const TensorFunction& function,
                                                            const std::vector<at::Tensor>& inputs);

// Runs `op` and the composition of ATen operators, forward and backward, and the composition in fp64. Names the first
// result of `op` whose error is more than twice that of the composition in the inputs' dtypes and more than a rounding
// of its own dtype; also one of another shape or dtype, and one that a second run does not repeat bit for bit. Empty:
// none.
[[nodiscard]] std::string worse_than_composition(const TensorFunction& op, const TensorFunction& composition,
                                                 const std::vector<at::Tensor>& inputs);

// Whether every result of two functions of the same inputs has the same bits.
[[nodiscard]] bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

// Runs `body`; false when the device has too little memory for it.
[[nodiscard]] bool fits_into_memory(const std::function<void()>& body);

}  // namespace d9d::testing
