// y = x W^T (+ b), for one weight or several of one input: torch.nn.functional.linear.
//
// Example
//   const at::Tensor y = d9d::kernels::linear(x, weight);                                      // [..., out]
//   const std::vector<at::Tensor> qkv = d9d::kernels::linears(x, {q_weight, k_weight, v_weight}, {q_b, k_b, v_b});
//
// Backward writes or adds the gradient of a weight or bias to its gradient place if it has one
// (core/autograd/leaf_gradient.h), in the place's dtype; in a split backward both are deferred, and keep x and the
// gradient of y. With several weights backward accumulates the gradient of x within the matrix products.
//
// On a GPU weights that are contiguous to each other in memory are multiplied in one product: their outputs are then
// column slices of one buffer, with strided rows. The product adds the biases. Backward joins products and sums too, if
// the gradients of the outputs are such slices.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// x [..., in], weights [out_i, in], biases [out_i], one for each weight or none, of the same dtype and device ->
// [..., out_i] each. Throws ConfigError for other shapes, dtypes or devices.
[[nodiscard]] std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                              const std::vector<at::Tensor>& biases = {});
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace d9d::kernels
