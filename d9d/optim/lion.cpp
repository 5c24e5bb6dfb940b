#include "d9d/optim/lion.h"

#include <ATen/ATen.h>

#include "d9d/kernels/momentum/momentum.h"
#include "d9d/optim/leaves.h"

namespace d9d {
namespace {

constexpr std::string_view kLion = "Lion";

}  // namespace

Lion::Lion(const std::vector<NamedParameter>& parameters, const LionConfig& config) : config_(config) {
  detail::check_not_negative("lr", config.lr, kLion);
  detail::check_leaves(parameters, kLion);
  const ParameterGroups groups(config, /*place=*/"[optim::Lion] ");
  for (const NamedParameter& parameter : parameters) {
    averages_.push_back(
        {.parameter = parameter, .options = groups.options_of(parameter), .exp_avg = detail::zero_state(parameter)});
  }
  rate_factors_ = groups.rate_factors();
}

void Lion::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void Lion::step(double learning_rate, const at::Tensor& grad_scale) {
  detail::check_learning_rate(learning_rate, kLion);
  std::map<ParameterOptions, std::vector<kernels::MomentumTensors>> batches;
  for (const Average& each : averages_) {
    const at::Tensor& parameter = each.parameter.tensor;
    if (!parameter.grad().defined()) continue;
    detail::check_dense_gradient(each.parameter, kLion);
    batches[each.options].push_back({.parameter = parameter, .grad = parameter.grad(), .buffer = each.exp_avg});
  }
  for (const auto& [options, tensors] : batches) {
    const auto& [beta1, beta2] = options.betas;
    const double rate = learning_rate * options.lr_factor;
    kernels::momentum_(tensors,
                       {.buffer_decay = beta2,
                        .buffer_grad = 1 - beta2,
                        .update_buffer = beta1,
                        .update_grad = 1 - beta1,
                        .parameter_decay = 1 - rate * options.weight_decay,
                        .step_size = rate,
                        .takes_sign = true},
                       grad_scale);
  }
}

std::map<std::string, DTensor> Lion::state_dict() const {
  std::map<std::string, DTensor> state;
  for (const Average& each : averages_) {
    state.emplace(each.parameter.name + ".exp_avg", each.parameter.laid_out(each.exp_avg));
  }
  return state;
}

}  // namespace d9d
