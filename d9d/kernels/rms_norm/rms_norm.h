// Root-mean-square normalisation of the last dim with a learned scale (Zhang and Sennrich, arXiv:1910.07467).
//
//   out[..., i] = x[..., i] * rsqrt(mean_j(x[..., j]^2) + eps) * weight[i]
//
// Example
//   const at::Tensor normed = kernels::rms_norm(hidden, norm_weight, 1e-6);
//   const auto [hidden, normed] = kernels::add_rms_norm(attended, hidden_before, norm_weight, 1e-6);
//   const auto [same, normed_too] = kernels::add_rms_norm(hidden, std::nullopt, norm_weight, 1e-6);  // a branch begins
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// Legend   N = normalised columns (> 0).
// x        [..., N], floating, any strides, any number of rows including none.
// weight   [N], floating, any dtype; with zero_centered the factor is 1 + weight.
// Returns  [..., N] in x's dtype. Computed in fp32 (fp64 for fp64 x) with one rounding at the end.
// Differentiable once in x and weight; the weight gradient adds rows in an order that only the shape decides.
// Local. Throws ConfigError on shapes, dtypes or devices that do not fit.
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps = 1e-6,
                                  bool zero_centered = false);

// A residual connection and the norm after it, on a GPU in one pass over memory: sum = x + residual,
// norm = rms_norm(sum).
struct AddRmsNorm {
  at::Tensor sum;   // [..., N]
  at::Tensor norm;  // [..., N]
};

// Legend       N = normalised columns (> 0).
// x, residual  [..., N], one shape and floating dtype, any strides, any number of rows including none.
//              Without a residual the returned sum is x. If it is used in place of x from there on, the norm's backward
//              adds the gradient of these uses to that of the norm.
// weight       [N], floating, any dtype; with zero_centered the factor is 1 + weight.
// Returns      both in x's dtype; the norm is that of the rounded sum, as after a separate addition.
// Differentiable once in x, residual and weight, through both results; keeps the sum.
// Local. Throws ConfigError on shapes, dtypes or devices that do not fit.
[[nodiscard]] AddRmsNorm add_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                      const at::Tensor& weight, double eps = 1e-6, bool zero_centered = false);

}  // namespace d9d::kernels
