// Makes matrices orthogonal by a Newton-Schulz iteration, which needs products of matrices only.
//
// Example
//   const at::Tensor x = at::randn({8, 2048, 768});
//   const at::Tensor y = orthogonalized(x, {});        // overwrites x; singular values of y are near 1
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d {

// A step maps a singular value s to a s + b s^3 + c s^5. The default coefficients are those of Keller Jordan's Muon
// (https://kellerjordan.github.io/posts/muon), which raise small values fast and leave all within about 0.7 to 1.2.
struct NewtonSchulzOptions {
  std::array<double, 3> coefficients = {3.4445, -4.7750, 2.0315};  // a, b, c
  std::int64_t num_steps = 5;
  double eps = 1e-7;  // matrices are first divided by their Frobenius norm, or by this if it is smaller
};

// x [n, rows, cols], floating: n matrices, each treated alone. Returns the same shape and dtype, in which all products
// are rounded; norms are float32, or float64 for float64. Overwrites x. Nothing waits for a device. Local.
[[nodiscard]] at::Tensor orthogonalized(at::Tensor x, const NewtonSchulzOptions& options);

}  // namespace d9d
