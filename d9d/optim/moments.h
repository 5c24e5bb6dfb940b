// The state that optimisers of the Adam family keep for each parameter, step count and moments, and their step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/optim/optimizer_protocol.h"
#include "d9d/optim/parameter_groups.h"

namespace d9d::detail {

struct Moments {
  NamedParameter parameter;
  ParameterOptions options;
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
                                                const ParameterGroups& groups, const MomentsOptions& options);

// What the parameters of an optimiser have in common.
struct AdamStep {
  std::string_view optimizer;  // its name, for errors
  double learning_rate = 0.0;
  double eps = 0.0;
  bool maximize = false;
  bool decouples_decay = true;                                // from the gradient
  std::optional<std::uint64_t> rounding_seed = std::nullopt;  // bfloat16 parameters are rounded stochastically
};
// Updates the parameters that have a gradient, those with equal options together, and counts the step. Gradients are
// multiplied by grad_scale, as in ScalesGradients. Throws ConfigError for a negative learning rate and for sparse
// gradients.
void step(const std::vector<Moments>& moments, const AdamStep& shared, const at::Tensor& grad_scale);

// Decrements the step counts of the parameters that have a gradient.
void forget_step(const std::vector<Moments>& moments);

// <name>.step, <name>.exp_avg, <name>.exp_avg_sq and, if it is defined, <name>.max_exp_avg_sq: aliases.
// Moments have the layout of their parameter.
[[nodiscard]] std::map<std::string, DTensor> state_of(const std::vector<Moments>& moments);

}  // namespace d9d::detail
