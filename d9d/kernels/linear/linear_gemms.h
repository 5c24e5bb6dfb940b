// The matrix products of linears (forward, gradient of the input, gradients of weights and biases), without autograd.
//
// Legend   T rows, H width of the input, N_i widths of the outputs; all tensors of one floating dtype and device
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/leaf_gradient.h"

namespace d9d::kernels::detail {

// x [T, H], weights [N_i, H], biases [N_i], one for each weight or none -> [T, N_i] each. With `joins`, weights that
// are adjacent in memory share one product, and their outputs are column slices of its result.
[[nodiscard]] std::vector<at::Tensor> linears_forward(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                                      const std::vector<at::Tensor>& biases, bool joins);

// Outputs [num_rows, N_i] without values, column slices of one buffer where `joins` lets weights share a product; and
// the products into rows of them: outputs [T, N_i] for x [T, H].
[[nodiscard]] std::vector<at::Tensor> empty_linears_outputs(std::int64_t num_rows,
                                                            const std::vector<at::Tensor>& weights, bool joins);
void write_linears(const std::vector<at::Tensor>& outputs, const at::Tensor& x, const std::vector<at::Tensor>& weights,
                   const std::vector<at::Tensor>& biases);

// grads [T, N_i], of which undefined ones count as zero and at least one is defined; weights [N_i, H] -> the gradient
// of x, [T, H].
[[nodiscard]] at::Tensor linears_input_gradient(const std::vector<at::Tensor>& grads,
                                                const std::vector<at::Tensor>& weights);
// The same into `out` [T, H].
void write_linears_input_gradient(const at::Tensor& out, const std::vector<at::Tensor>& grads,
                                  const std::vector<at::Tensor>& weights);

// The gradients [N_i, H] of the weights, one for each of `grads` [T, N_i]; undefined for a weight with a place, to
// which the gradient was written or added.
[[nodiscard]] std::vector<at::Tensor> linears_weight_gradients(std::span<const at::Tensor> grads, const at::Tensor& x,
                                                               const GradientPlaces& places);

// The gradients [N_i] of the biases, likewise: the sum of each of `grads` over its rows.
[[nodiscard]] std::vector<at::Tensor> linears_bias_gradients(std::span<const at::Tensor> grads,
                                                             const GradientPlaces& places);

}  // namespace d9d::kernels::detail
