#include "d9d/loop/component/gradient_manager.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/internals/grad_norm/grad_norm.h"

namespace d9d {

GradientManager::GradientManager(const Module& module, const GradientClippingConfig& config)
    : parameters_(module.named_parameters()), config_(config) {}

void GradientManager::add_loss_with_weight(const at::Tensor& loss, const at::Tensor& weight) {
  const at::Tensor wide_weight = weight.detach().to(at::kDouble);
  const at::Tensor weighted = loss.detach().to(at::kDouble) * wide_weight;
  weighted_loss_ = weighted_loss_.defined() ? weighted_loss_ + weighted : weighted;
  total_weight_ = total_weight_.defined() ? total_weight_ + wide_weight : wide_weight;
}

StepGradients GradientManager::finish_step() {
  D9D_CHECK(total_weight_.defined(), StateError,
            "[loop::gradients] expected at least one microbatch with a loss in the step, got none.");
  const at::NoGradGuard no_grad;
  StepGradients step{.total_weight = total_weight_.item<double>()};
  if (step.total_weight == 0.0) {
    step.is_usable = false;
    step.reason = "its total loss weight is 0";
    return step;
  }
  const std::vector<at::Tensor> grads = gradients();
  step.loss = weighted_loss_.item<double>() / step.total_weight;
  const at::Tensor norm = global_grad_norm(grads, 2.0) / std::abs(step.total_weight);
  step.norm = norm.item<double>();
  if (!std::isfinite(step.loss) || !std::isfinite(step.norm)) {
    step.is_usable = false;
    step.reason = cat("loss ", step.loss, ", gradient norm ", step.norm, first_non_finite());
    D9D_CHECK(config_.on_non_finite == NonFinitePolicy::kSkip, StateError,
              "[loop::gradients] expected a finite loss and gradient norm, got ", step.reason,
              ". Lower the learning rate or set trainer.gradient_clipping.on_non_finite to \"skip\".");
    return step;
  }
  const double clip = config_.max_norm ? clip_coefficient(norm, *config_.max_norm).item<double>() : 1.0;
  if (!grads.empty()) at::_foreach_mul_(grads, clip / step.total_weight);
  return step;
}

void GradientManager::reset() {
  for (const auto& [name, parameter] : parameters_) parameter->local().mutable_grad() = at::Tensor();
  weighted_loss_ = at::Tensor();
  total_weight_ = at::Tensor();
}

std::vector<at::Tensor> GradientManager::gradients() const {
  std::vector<at::Tensor> grads;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter->local().grad().defined()) grads.push_back(parameter->local().grad());
  }
  return grads;
}

std::string GradientManager::first_non_finite() const {
  for (const auto& [name, parameter] : parameters_) {
    const at::Tensor& grad = parameter->local().grad();
    if (grad.defined() && !grad.isfinite().all().item<bool>()) return cat(", first in the gradient of ", name);
  }
  return "";
}

}  // namespace d9d
