// Root-mean-square normalisation of the last dim with a learned scale (Zhang and Sennrich, arXiv:1910.07467).
//
//   out[..., i] = x[..., i] * rsqrt(mean_j(x[..., j]^2) + eps) * weight[i]
//
// Example
//   const at::Tensor normed = kernels::rms_norm(hidden, norm_weight, 1e-6);
#pragma once

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

}  // namespace d9d::kernels
