// Compares results in a low precision, where elements differ but directions must agree: with an oracle in the same
// precision, and both with the exact result.
//
// Example
//   expect_same_direction(gradients, oracle_gradients);
//   expect_rounding_like(gradients, oracle_gradients, exact_gradients);
#pragma once

#include <cmath>

#include "tests/support/compare.h"

namespace d9d::test {

// 1 - cosine of every tensor is at most tolerance("bf16 angle"), and its L2 norm differs from the oracle's by at most
// tolerance("bf16 norm"). Tensors that are zero on both sides agree.
inline void expect_same_direction(const std::map<std::string, at::Tensor>& actual,
                                  const std::map<std::string, at::Tensor>& oracle) {
  const auto flat = [](const at::Tensor& tensor) { return tensor.detach().to(at::kDouble).flatten(); };
  ASSERT_EQ(actual.size(), oracle.size());
  for (const auto& [name, tensor] : oracle) {
    ASSERT_TRUE(actual.contains(name)) << name << " is missing";
    ASSERT_EQ(actual.at(name).scalar_type(), tensor.scalar_type()) << name;
    const at::Tensor ours = flat(actual.at(name)), theirs = flat(tensor);
    const double norm = ours.norm().item<double>(), expected_norm = theirs.norm().item<double>();
    if (norm == 0.0 && expected_norm == 0.0) continue;
    const double angle = 1.0 - ours.dot(theirs).item<double>() / (norm * expected_norm);
    EXPECT_TRUE(angle <= tolerance("bf16 angle").value) << name << ": 1 - cosine " << angle;
    EXPECT_TRUE(std::abs(norm - expected_norm) <= tolerance("bf16 norm").value * expected_norm)
        << name << ": norm " << norm << ", expected " << expected_norm;
  }
}

// The L2 distance of every tensor from `exact` is at most tolerance("bf16 error ratio") times that of the peer's
// tensor.
// If the peer happens to have an unusually small error in a tensor, its typical error counts instead: the root mean
// square of its relative errors.
inline void expect_rounding_like(const std::map<std::string, at::Tensor>& actual,
                                 const std::map<std::string, at::Tensor>& peer,
                                 const std::map<std::string, at::Tensor>& exact) {
  ASSERT_EQ(actual.size(), exact.size());
  const auto relative_error = [&](const std::map<std::string, at::Tensor>& rounded, const std::string& name) {
    const at::Tensor& reference = exact.at(name);
    const double norm = reference.norm().item<double>();
    const double error = (rounded.at(name).detach().to(at::kDouble) - reference).norm().item<double>();
    return error == 0.0 ? 0.0 : error / norm;
  };
  double sum_of_squares = 0.0;
  for (const auto& [name, tensor] : exact) sum_of_squares += std::pow(relative_error(peer, name), 2);
  const double usual = std::sqrt(sum_of_squares / static_cast<double>(exact.size()));
  for (const auto& [name, tensor] : exact) {
    const double error = relative_error(actual, name), peer_error = std::max(relative_error(peer, name), usual);
    EXPECT_TRUE(error <= tolerance("bf16 error ratio").value * peer_error)
        << name << ": relative error " << error << ", the peer's " << peer_error << ", ratio " << error / peer_error;
  }
}

}  // namespace d9d::test
