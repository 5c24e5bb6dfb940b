// Compares tensors with an oracle's. The error is the largest difference of an element; it is measured against the
// tensor's scale, the largest magnitude that the oracle has in it.
//
// Example
//   expect_close("logits", logits, oracle.at("logits"), tolerance("fp64"));
//   expect_all_close(gradients, oracle_gradients, tolerance("fp64"));
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/tolerances.h"

namespace d9d::test {

[[nodiscard]] inline double largest_magnitude(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0.0 : tensor.detach().abs().max().to(at::kDouble).item<double>();
}

// Shapes and dtypes must agree. `least_scale`: the scale of a tensor whose own is smaller.
inline void expect_close(const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                         const Tolerance& tolerance, double least_scale = 0.0) {
  ASSERT_TRUE(actual.defined()) << name << " is undefined";
  ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << name;
  const double scale = std::max(largest_magnitude(expected), least_scale);
  const double error = largest_magnitude(actual.detach().to(at::kDouble) - expected.detach().to(at::kDouble));
  EXPECT_TRUE(error <= tolerance.value * scale)  // false for NaN
      << name << ": max error " << error << ", scale " << scale << ", relative " << error / scale << " > "
      << tolerance.value << " (" << tolerance.name << ")";
}

// For sets that vary in scale, such as the gradients of a model: the names must be the same, and a tensor's scale is at
// least 1e-3 of the largest magnitude in the set.
inline void expect_all_close(const std::map<std::string, at::Tensor>& actual,
                             const std::map<std::string, at::Tensor>& expected, const Tolerance& tolerance) {
  double largest = 0.0;
  for (const auto& [name, tensor] : expected) largest = std::max(largest, largest_magnitude(tensor));
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end()) {
      ADD_FAILURE() << name << " is missing";
    } else {
      expect_close(name, found->second, tensor, tolerance, 1e-3 * largest);
    }
  }
  for (const auto& [name, tensor] : actual) EXPECT_TRUE(expected.contains(name)) << name << " has no oracle";
}

}  // namespace d9d::test
