// What every optimiser checks of its parameters, gradients and numbers, and what its state is like.
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/optim/optimizer_protocol.h"

namespace d9d::detail {

// The checks throw ConfigError; `optimizer` is its name in the message.

// Checks that tensors are floating leaves with storage of their own, and names distinct.
void check_leaves(const std::vector<NamedParameter>& parameters, std::string_view optimizer);
void check_dense_gradient(const NamedParameter& parameter, std::string_view optimizer);
// Checks that a number of the configuration, and the learning rate of a step, are not negative.
void check_not_negative(std::string_view name, double value, std::string_view optimizer);
void check_learning_rate(double learning_rate, std::string_view optimizer);

// The dtype of what an optimiser keeps for the elements of a parameter: float32, or float64 for float64.
[[nodiscard]] at::ScalarType state_dtype(const NamedParameter& parameter);
// Zeros of that dtype, one for each element of the parameter's tensor.
[[nodiscard]] at::Tensor zero_state(const NamedParameter& parameter);

}  // namespace d9d::detail
