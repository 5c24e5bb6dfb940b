// The state that optimisers of the Adam family keep for each parameter: step count and moments, and their state dict.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/adamw/adamw.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d::detail {

struct Moments {
  NamedParameter parameter;
  at::Tensor step;  // 0-dim int64, on the CPU
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor max_exp_avg_sq;  // undefined unless amsgrad
};

struct MomentsOptions {
  std::string_view optimizer;                                            // the optimiser's name, for errors
  std::function<at::ScalarType(const NamedParameter& parameter)> dtype;  // of the moments
  bool amsgrad = false;
};

// Allocates moments as zeros. Throws ConfigError for tensors that are not floating leaves with storage, and for names
// that repeat.
[[nodiscard]] std::vector<Moments> make_moments(const std::vector<NamedParameter>& parameters,
                                                const MomentsOptions& options);

// Increments the step count of a parameter that has a gradient and returns the tensors that the step updates. Throws
// ConfigError for sparse gradients.
[[nodiscard]] kernels::AdamWTensors begin_step(const Moments& moments, std::string_view optimizer);

// Decrements the step counts that begin_step incremented, those of the parameters that have a gradient.
void forget_step(const std::vector<Moments>& moments);

// <name>.step, <name>.exp_avg, <name>.exp_avg_sq and, if it is defined, <name>.max_exp_avg_sq: aliases.
// Moments have the layout of their parameter.
[[nodiscard]] std::map<std::string, DTensor> state_of(const std::vector<Moments>& moments);

// Throws ConfigError for numbers out of range.
void check_adam_numbers(double lr, const std::pair<double, double>& betas, double eps, double weight_decay,
                        std::string_view optimizer);
void check_learning_rate(double learning_rate, std::string_view optimizer);

}  // namespace d9d::detail
