// Compares results in a low precision, where elements differ and directions must not: with an oracle in the same
// precision, and both with the exact result.
//
// Example
//   expect_same_direction(gradients, oracle_gradients);
//   expect_rounding_like(gradients, oracle_gradients, exact_gradients);
#pragma once

#include <cmath>

#include "tests/support/compare.h"

namespace d9d::test {

// 1 - cosine of every tensor is at most tolerance("bf16 angle"), and its L2 norm that of the oracle within
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

// The L2 distance of every tensor from `exact` is at most tolerance("bf16 error ratio") times that of the peer's, which
// counts as at least tolerance("bf16 rounding") of the norm of `exact`.
inline void expect_rounding_like(const std::map<std::string, at::Tensor>& actual,
                                 const std::map<std::string, at::Tensor>& peer,
                                 const std::map<std::string, at::Tensor>& exact) {
  ASSERT_EQ(actual.size(), exact.size());
  for (const auto& [name, tensor] : exact) {
    const auto error_of = [&](const at::Tensor& rounded) {
      return (rounded.detach().to(at::kDouble) - tensor).norm().item<double>();
    };
    const double least = tolerance("bf16 rounding").value * tensor.norm().item<double>();
    const double error = error_of(actual.at(name)), peer_error = std::max(error_of(peer.at(name)), least);
    EXPECT_TRUE(error <= tolerance("bf16 error ratio").value * peer_error)
        << name << ": error " << error << ", the peer's " << peer_error << ", ratio " << error / peer_error;
  }
}

}  // namespace d9d::test
