// The three products of linears on matrices, without autograd.
//
// Legend   T rows, H width of the input, N_i of the outputs; all of one floating dtype and device
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/leaf_gradient.h"

namespace d9d::kernels::detail {

// x [T, H], weights [N_i, H] -> [T, N_i] each. joins: one product for weights that follow each other, outputs column
// slices of it.
[[nodiscard]] std::vector<at::Tensor> linears_forward(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                                      bool joins);

// grads [T, N_i] or undefined for zero, at least one defined; weights [N_i, H] -> the gradient of x, [T, H].
[[nodiscard]] at::Tensor linears_input_gradient(const std::vector<at::Tensor>& grads,
                                                const std::vector<at::Tensor>& weights);

// The gradients of weights [N_i, H], one for each of `grads` [T, N_i]; undefined where it was added to its place.
[[nodiscard]] std::vector<at::Tensor> linears_weight_gradients(const std::vector<at::Tensor>& grads,
                                                               const at::Tensor& x,
                                                               const std::vector<std::optional<GradientPlace>>& places);

}  // namespace d9d::kernels::detail
