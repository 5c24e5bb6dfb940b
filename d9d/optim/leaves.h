// What every optimiser checks of its parameters, gradients and numbers.
#pragma once

#include <string_view>
#include <vector>

#include "d9d/optim/optimizer_protocol.h"

namespace d9d::detail {

// All throw ConfigError; `optimizer` is its name in the message.

// Checks that tensors are floating leaves with storage, and names distinct.
void check_leaves(const std::vector<NamedParameter>& parameters, std::string_view optimizer);
void check_dense_gradient(const NamedParameter& parameter, std::string_view optimizer);
// Checks that a number of the configuration, and the learning rate of a step, are not negative.
void check_not_negative(std::string_view name, double value, std::string_view optimizer);
void check_learning_rate(double learning_rate, std::string_view optimizer);

}  // namespace d9d::detail
