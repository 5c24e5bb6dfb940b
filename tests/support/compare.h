// Compares tensors with an oracle's. The error is the largest difference of an element, relative to the tensor's scale,
// which is the largest magnitude in the oracle's tensor.
//
// Example
//   expect_close("logits", logits, oracle.at("logits"), tolerance("fp64"));
//   expect_all_close(gradients, oracle_gradients, tolerance("fp64"));
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/tolerances.h"

namespace d9d::test {

[[nodiscard]] inline double largest_magnitude(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0.0 : tensor.detach().abs().max().to(at::kDouble).item<double>();
}

// A description of the difference; empty if it is within the tolerance. Shapes and dtypes must agree. `least_scale`: a
// lower bound of the tensor's scale.
[[nodiscard]] inline std::string difference(const std::string& name, const at::Tensor& actual,
                                            const at::Tensor& expected, const Tolerance& tolerance,
                                            double least_scale = 0.0) {
  if (!actual.defined()) return cat(name, " is undefined");
  if (actual.sizes() != expected.sizes() || actual.scalar_type() != expected.scalar_type()) {
    return cat(name, ": ", actual.scalar_type(), " ", actual.sizes(), ", expected ", expected.scalar_type(), " ",
               expected.sizes());
  }
  const double scale = std::max(largest_magnitude(expected), least_scale);
  const double error = largest_magnitude(actual.detach().to(at::kDouble) - expected.detach().to(at::kDouble));
  if (error <= tolerance.value * scale) return "";  // false for NaN
  return cat(name, ": max error ", error, ", scale ", scale, ", relative ", error / scale, " > ", tolerance.value, " (",
             tolerance.name, ")");
}

// For sets of tensors whose scales vary, such as the gradients of a model. The names must be the same, and a tensor's
// scale is at least 1e-3 of the largest magnitude in the set. Returns one line for each of the first few differences.
[[nodiscard]] inline std::string difference(const std::map<std::string, at::Tensor>& actual,
                                            const std::map<std::string, at::Tensor>& expected,
                                            const Tolerance& tolerance) {
  double largest = 0.0;
  for (const auto& [name, tensor] : expected) largest = std::max(largest, largest_magnitude(tensor));
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    lines.push_back(found == actual.end() ? cat(name, " is missing")
                                          : difference(name, found->second, tensor, tolerance, 1e-3 * largest));
  }
  for (const auto& [name, tensor] : actual) {
    if (!expected.contains(name)) lines.push_back(cat(name, " has no oracle"));
  }
  std::erase(lines, "");
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), std::size_t{6}); ++i) text += cat(i == 0 ? "" : "\n", lines[i]);
  if (lines.size() > 6) text += cat("\n... and ", lines.size() - 6, " more");
  return text;
}

inline void expect_close(const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                         const Tolerance& tolerance, double least_scale = 0.0) {
  const std::string text = difference(name, actual, expected, tolerance, least_scale);
  EXPECT_TRUE(text.empty()) << text;
}

inline void expect_all_close(const std::map<std::string, at::Tensor>& actual,
                             const std::map<std::string, at::Tensor>& expected, const Tolerance& tolerance) {
  const std::string text = difference(actual, expected, tolerance);
  EXPECT_TRUE(text.empty()) << text;
}

}  // namespace d9d::test
