// Shared by the tests of operators whose weights' gradients wait for the second half of a split backward.
//
// Example
//   EXPECT_EQ(split_difference(op, {x, weight}), "");
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tests/kernels/op_testing.h"

namespace d9d::testing {

// What a weight's gradient is added to: autograd's .grad(), or memory in the weight's dtype or in float32, as buckets
// and FSDP have.
enum class GradientMemory : std::uint8_t { kAutograd, kOwn, kOwnFloat };

struct SplitGradients {
  std::vector<at::Tensor> of_inputs;   // of the first input, in each microbatch
  std::vector<at::Tensor> of_weights;  // of the others
  std::int64_t num_waited = 0;         // products
};

// Gradients of two microbatches, of which the second input is the first one's times 1/2; all but the first are weights.
[[nodiscard]] SplitGradients gradients_of(const TensorFunction& op, const std::vector<at::Tensor>& inputs,
                                          bool is_split, GradientMemory memory);

// Whether a split backward gives the bits of a whole one, for each memory, and `num_products` of a microbatch waited.
// Empty if so.
[[nodiscard]] std::string split_difference(const TensorFunction& op, const std::vector<at::Tensor>& inputs,
                                           std::int64_t num_products);

}  // namespace d9d::testing
