#include "d9d/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::string_view kAdamW = "AdamW";

}  // namespace

AdamW::AdamW(const std::vector<NamedParameter>& parameters, const AdamWConfig& config) : config_(config) {
  detail::check_adam_numbers(config.lr, config.betas, config.eps, config.weight_decay, kAdamW);
  const auto dtype = [](const NamedParameter& parameter) { return at::toOpMathType(parameter.tensor.scalar_type()); };
  moments_ = detail::make_moments(parameters, {.optimizer = kAdamW, .dtype = dtype, .amsgrad = config.amsgrad});
}

void AdamW::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void AdamW::step(double learning_rate, const at::Tensor& grad_scale) {
  detail::check_learning_rate(learning_rate, kAdamW);
  std::vector<kernels::AdamWTensors> tensors;
  for (const detail::Moments& moments : moments_) {
    if (moments.parameter.tensor.grad().defined()) tensors.push_back(detail::begin_step(moments, kAdamW));
  }
  kernels::adamw_(tensors,
                  {.learning_rate = learning_rate,
                   .beta1 = config_.betas.first,
                   .beta2 = config_.betas.second,
                   .eps = config_.eps,
                   .weight_decay = config_.weight_decay,
                   .maximize = config_.maximize},
                  grad_scale);
}

}  // namespace d9d
