// y = x W^T, for one weight or several of one input: torch.nn.functional.linear without a bias.
//
// Example
//   const at::Tensor y = d9d::kernels::linear(x, weight);                                      // [..., out]
//   const std::vector<at::Tensor> qkv = d9d::kernels::linears(x, {q_weight, k_weight, v_weight});
//
// Backward adds the gradient of a weight to what is there already where something keeps it (core/autograd/
// leaf_gradient.h), in that memory's dtype, and sums the gradients of x of several weights within their products.
//
// On a GPU weights that lie one after another in memory are multiplied at once: their outputs are then column slices of
// one buffer, rows with strides. So are, backward, the gradients of outputs that come as such slices.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// x [..., in], weights [out_i, in] of its dtype and device -> [..., out_i] each. Throws ConfigError for others.
[[nodiscard]] std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights);
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace d9d::kernels
