// Shared by the tests of operators: reproducible data, and the comparison of an operator with a plain composition of
// ATen operators through autograd.
//
// Example
//   EXPECT_LT(worst_difference(op, composition, {values({3, 5}, 1), values({5}, 2)}), 1e-12);
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/ATen.h>

namespace d9d::testing {

// Standard normal numbers, determined by shape and seed.
[[nodiscard]] at::Tensor values(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype = at::kDouble);

// A leaf with the same numbers and strides that requires a gradient.
[[nodiscard]] at::Tensor leaf(const at::Tensor& tensor);

// Computes .grad of the leaves that lead to `outputs`.
void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& grads);

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Runs both forward and, with the same random output gradients, backward; returns the largest difference of an output
// or of an input's gradient, relative to the largest magnitude of the expected tensor (or one, if that is smaller).
// Missing gradients and other shapes or dtypes count as infinite. Integer inputs get no gradient.
[[nodiscard]] double worst_difference(const TensorFunction& op, const TensorFunction& expected,
                                      const std::vector<at::Tensor>& inputs);

// max|actual - expected| / max(1, max|expected|), in fp64; infinite for NaN or other shapes.
[[nodiscard]] double difference(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace d9d::testing
