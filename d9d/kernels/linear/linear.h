// y = x W^T, for one weight or several of one input: torch.nn.functional.linear without a bias.
//
// Example
//   const at::Tensor y = d9d::kernels::linear(x, weight);                                      // [..., out]
//   const std::vector<at::Tensor> qkv = d9d::kernels::linears(x, {q_weight, k_weight, v_weight});
//
// Backward writes or adds the gradient of a weight to its gradient place if it has one (core/autograd/leaf_gradient.h),
// in the place's dtype; in a split backward this product waits, and keeps x and the gradient of y. With several weights
// backward accumulates the gradient of x within the matrix products.
//
// On a GPU weights that are contiguous to each other in memory are multiplied in one product: their outputs are then
// column slices of one buffer, with strided rows. Backward joins products too, if the gradients of the outputs are such
// slices.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// x [..., in], weights [out_i, in] of the same dtype and device -> [..., out_i] each. Throws ConfigError for other
// shapes, dtypes or devices.
[[nodiscard]] std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights);
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace d9d::kernels
