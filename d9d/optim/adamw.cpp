#include "d9d/optim/adamw.h"

#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/optim/adamw_update.h"

namespace d9d {
namespace {

void check_config(const AdamWConfig& config) {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  D9D_CHECK(config.lr >= 0 && config.eps >= 0 && config.weight_decay >= 0, ConfigError,
            "[optim::AdamW] expected lr, eps and weight_decay >= 0, got lr = ", config.lr, ", eps = ", config.eps,
            ", weight_decay = ", config.weight_decay, ". Use positive numbers.");
  D9D_CHECK(is_beta(config.betas.first) && is_beta(config.betas.second), ConfigError,
            "[optim::AdamW] expected betas in [0, 1), got ", config.betas.first, " and ", config.betas.second,
            ". The usual ones are 0.9 and 0.999.");
}

void check_parameters(const std::vector<NamedParameter>& parameters) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : parameters) {
    D9D_CHECK(tensor.defined() && tensor.is_floating_point() && tensor.is_leaf() && !tensor.is_meta(), ConfigError,
              "[optim::AdamW] expected parameter '", name,
              "' to be a floating leaf with storage, got another tensor. Build the optimizer after the parameters.");
    D9D_CHECK(names.insert(name).second, ConfigError, "[optim::AdamW] expected distinct names, got '", name,
              "' twice. Name a shared parameter once.");
  }
}

}  // namespace

AdamW::AdamW(const std::vector<NamedParameter>& parameters, const AdamWConfig& config) : config_(config) {
  check_config(config);
  check_parameters(parameters);
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const at::TensorOptions options =
        tensor.options().dtype(at::toOpMathType(tensor.scalar_type())).requires_grad(false);
    const auto zeros = [&] { return at::zeros(tensor.sizes(), options); };
    states_.push_back({.parameter = parameter,
                       .step = at::zeros({}, at::kLong),
                       .exp_avg = zeros(),
                       .exp_avg_sq = zeros(),
                       .max_exp_avg_sq = config.amsgrad ? zeros() : at::Tensor()});
  }
}

void AdamW::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void AdamW::step(double learning_rate, const at::Tensor& grad_scale) {
  D9D_CHECK(learning_rate >= 0, ConfigError, "[optim::AdamW] expected a learning rate >= 0, got ", learning_rate,
            ". Check the scheduler.");
  D9D_CHECK(grad_scale.dim() == 0, ConfigError, "[optim::AdamW] expected grad_scale of no dims, got ",
            grad_scale.sizes(), ". One factor covers all gradients.");
  const at::NoGradGuard no_grad;
  const at::Tensor signed_scale = config_.maximize ? -grad_scale : grad_scale;
  for (State& state : states_)
    if (state.parameter.tensor.grad().defined()) update(state, learning_rate, signed_scale);
}

void AdamW::update(State& state, double learning_rate, const at::Tensor& grad_scale) {
  const detail::AdamWTensors tensors{.parameter = state.parameter.tensor,
                                     .grad = state.parameter.tensor.grad(),
                                     .exp_avg = state.exp_avg,
                                     .exp_avg_sq = state.exp_avg_sq,
                                     .max_exp_avg_sq = state.max_exp_avg_sq};
  D9D_CHECK(tensors.grad.layout() == at::kStrided, ConfigError, "[optim::AdamW] expected a dense gradient of '",
            state.parameter.name, "', got layout ", tensors.grad.layout(), ". Sparse gradients are not built.");
  state.step.add_(1);
  const auto step = static_cast<double>(state.step.item<std::int64_t>());
  const auto [beta1, beta2] = config_.betas;
  const detail::AdamWFactors factors{.parameter_decay = 1 - learning_rate * config_.weight_decay,
                                     .beta1 = beta1,
                                     .beta2 = beta2,
                                     .step_size = learning_rate / (1 - std::pow(beta1, step)),
                                     .bias_correction2_sqrt = std::sqrt(1 - std::pow(beta2, step)),
                                     .eps = config_.eps};
  if (detail::has_adamw_loop(tensors) && grad_scale.is_cpu()) {
    detail::adamw_update_cpu(tensors, factors, grad_scale.item<double>());
    for (const at::Tensor& written : {tensors.parameter, tensors.exp_avg, tensors.exp_avg_sq})
      written.unsafeGetTensorImpl()->bump_version();
  } else {
    detail::adamw_update_aten(tensors, factors, grad_scale);
  }
}

std::map<std::string, at::Tensor> AdamW::state_dict() const {
  std::map<std::string, at::Tensor> result;
  for (const State& state : states_) {
    const std::string& name = state.parameter.name;
    result[name + ".step"] = state.step;
    result[name + ".exp_avg"] = state.exp_avg;
    result[name + ".exp_avg_sq"] = state.exp_avg_sq;
    if (config_.amsgrad) result[name + ".max_exp_avg_sq"] = state.max_exp_avg_sq;
  }
  return result;
}

void AdamW::load_state_dict(const std::map<std::string, at::Tensor>& state) {
  const std::map<std::string, at::Tensor> own = state_dict();
  for (const auto& [name, tensor] : state)
    D9D_CHECK(own.contains(name), StateError, "[optim::AdamW] expected state of its own parameters, got '", name,
              "'. The state belongs to another model or other options.");
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    D9D_CHECK(found != state.end(), StateError, "[optim::AdamW] expected state '", name,
              "', got none. The state belongs to another model or other options.");
    D9D_CHECK(found->second.sizes() == tensor.sizes() && found->second.scalar_type() == tensor.scalar_type(),
              StateError, "[optim::AdamW] expected '", name, "' as ", tensor.sizes(), " ", tensor.scalar_type(),
              ", got ", found->second.sizes(), " ", found->second.scalar_type(),
              ". The state belongs to another model.");
  }
  for (const auto& [name, tensor] : own) tensor.copy_(state.at(name));
}

}  // namespace d9d
