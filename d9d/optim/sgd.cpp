#include "d9d/optim/sgd.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/config/config_path.h"
#include "d9d/kernels/momentum/momentum.h"
#include "d9d/optim/leaves.h"

namespace d9d {
namespace {

constexpr std::string_view kSgd = "Sgd";

}  // namespace

Sgd::Sgd(const std::vector<NamedParameter>& parameters, const SgdConfig& config) : config_(config) {
  detail::check_not_negative("lr", config.lr, kSgd);
  config.validate(ConfigPath{.keys = "optimizer"});
  detail::check_leaves(parameters, kSgd);
  const ParameterGroups groups(config, /*place=*/"[optim::Sgd] ");
  for (const NamedParameter& parameter : parameters) {
    Velocity velocity{.parameter = parameter, .options = groups.options_of(parameter), .step = {}, .buffer = {}};
    if (config.momentum > 0) {
      velocity.step = at::zeros({}, at::kLong);
      velocity.buffer = detail::zero_state(parameter);
    }
    velocities_.push_back(std::move(velocity));
  }
  rate_factors_ = groups.rate_factors();
}

void Sgd::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void Sgd::step(double learning_rate, const at::Tensor& grad_scale) {
  detail::check_learning_rate(learning_rate, kSgd);
  std::map<std::pair<ParameterOptions, bool>, std::vector<kernels::MomentumTensors>>
      batches;  // by options, and whether undamped
  for (const Velocity& each : velocities_) {
    const at::Tensor& parameter = each.parameter.tensor;
    if (!parameter.grad().defined()) continue;
    detail::check_dense_gradient(each.parameter, kSgd);
    const bool is_first = each.step.defined() && ++*each.step.mutable_data_ptr<std::int64_t>() == 1;
    batches[{each.options, is_first || config_.dampening == 0}].push_back(
        {.parameter = parameter, .grad = parameter.grad(), .buffer = each.buffer});
  }
  for (const auto& [key, tensors] : batches) {
    const auto& [options, is_undamped] = key;
    const double momentum = options.momentum, grad = is_undamped ? 1.0 : 1.0 - config_.dampening;
    kernels::MomentumFactors factors{.gradient_decay = options.weight_decay,
                                     .step_size = learning_rate * options.lr_factor,
                                     .maximize = config_.maximize};
    if (config_.momentum > 0) {
      factors.buffer_decay = momentum;
      factors.buffer_grad = grad;
      factors.update_buffer = config_.nesterov ? momentum * momentum : momentum;
      factors.update_grad = config_.nesterov ? 1.0 + momentum : grad;
    }
    kernels::momentum_(tensors, factors, grad_scale);
  }
}

void Sgd::forget_step() {
  for (const Velocity& each : velocities_) {
    if (each.step.defined() && each.parameter.tensor.grad().defined()) --*each.step.mutable_data_ptr<std::int64_t>();
  }
}

std::map<std::string, DTensor> Sgd::state_dict() const {
  std::map<std::string, DTensor> state;
  for (const auto& [parameter, options, step, buffer] : velocities_) {
    if (!buffer.defined()) continue;
    state.emplace(parameter.name + ".step", whole_dtensor(step));
    state.emplace(parameter.name + ".momentum_buffer", parameter.laid_out(buffer));
  }
  return state;
}

}  // namespace d9d
