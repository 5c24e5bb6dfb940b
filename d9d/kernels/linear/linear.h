// y = x W^T (+ b), for one weight or several of one input: torch.nn.functional.linear. Terms of low rank, which are
// those of LoRA (Hu et al., arXiv:2106.09685), are added to y within the matrix products.
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
// the gradients of the outputs are such slices. The A of all terms are multiplied together.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/linear/row_exchange.h"

namespace d9d::kernels {

// scale * (x A^T) B^T, which is added to one of the outputs. Differentiable in x, A and B.
struct LowRankTerm {
  at::Tensor a;  // [r, in]
  at::Tensor b;  // [out, r]
  double scale = 1.0;
  std::size_t output = 0;  // which one
};
// Throws ConfigError if one does not fit x and the weights.
void check_terms(const std::vector<LowRankTerm>& terms, const at::Tensor& x, const std::vector<at::Tensor>& weights);

// x [..., in], weights [out_i, in], biases [out_i], one for each weight or none, of the same dtype and device as those
// of terms -> [..., out_i] each. Throws ConfigError for other shapes, dtypes or devices. With an exchange at an edge x
// is [B, S / W, in], or the output, which must be one and without bias, is [B, S / W, out]; the call is then
// collective.
[[nodiscard]] std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                              const std::vector<at::Tensor>& biases = {},
                                              const std::vector<LowRankTerm>& terms = {}, const RowEdges& edges = {});
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace d9d::kernels
