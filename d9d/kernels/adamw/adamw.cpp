#include "d9d/kernels/adamw/adamw.h"

#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/kernels/adamw/adamw_impl.h"
#include "d9d/kernels/common/unless_nan.h"

namespace d9d::kernels {
namespace detail {

AdamWFactors adamw_factors(const AdamWOptions& options, std::int64_t step) {
  const auto exponent = static_cast<double>(step);
  return {.parameter_decay = options.decouples_decay ? 1 - options.learning_rate * options.weight_decay : 1,
          .gradient_decay = options.decouples_decay ? 0 : options.weight_decay,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .step_size = options.learning_rate / (1 - std::pow(options.beta1, exponent)),
          .bias_correction2_sqrt = std::sqrt(1 - std::pow(options.beta2, exponent)),
          .eps = options.eps};
}

RandomStream rounding_stream(const AdamWTensors& tensors) {
  constexpr std::uint64_t kStreamsPerStep = 3;
  return {.key = tensors.rounding->key, .step = kStreamsPerStep * static_cast<std::uint64_t>(tensors.step)};
}

}  // namespace detail

namespace {

void check(const AdamWTensors& tensors) {
  const at::Tensor& parameter = tensors.parameter;
  const at::ScalarType wide = at::toOpMathType(parameter.scalar_type());
  const bool rounds = tensors.rounding.has_value();
  D9D_CHECK(parameter.is_floating_point() && tensors.grad.is_floating_point(), ConfigError,
            "[kernels::adamw] expected floating parameters and gradients, got ", parameter.scalar_type(), " and ",
            tensors.grad.scalar_type(), ". Leave other tensors out.");
  D9D_CHECK(!rounds || parameter.scalar_type() == at::kBFloat16, ConfigError,
            "[kernels::adamw] expected bfloat16 parameters to round stochastically, got ", parameter.scalar_type(),
            ". Leave rounding out.");
  for (const at::Tensor* tensor : {&tensors.grad, &tensors.exp_avg, &tensors.exp_avg_sq, &tensors.max_exp_avg_sq}) {
    if (tensor == &tensors.max_exp_avg_sq && !tensor->defined()) continue;
    D9D_CHECK(tensor->sizes() == parameter.sizes() && tensor->device() == parameter.device(), ConfigError,
              "[kernels::adamw] expected gradient and moments as ", parameter.sizes(), " on ", parameter.device(),
              " like their parameter, got ", tensor->sizes(), " on ", tensor->device(), ". Make them agree.");
    if (tensor == &tensors.grad) continue;
    const at::ScalarType dtype = tensor->scalar_type();
    D9D_CHECK(dtype == tensors.exp_avg.scalar_type() && (dtype == wide || (rounds && dtype == at::kBFloat16)),
              ConfigError, "[kernels::adamw] expected moments of one dtype, ", wide, rounds ? " or BFloat16" : "",
              ", got ", dtype, ". Allocate them so.");
  }
}

}  // namespace

void adamw_(const std::vector<AdamWTensors>& tensors, const AdamWOptions& options, const at::Tensor& grad_scale) {
  D9D_CHECK(grad_scale.dim() == 0, ConfigError, "[kernels::adamw] expected grad_scale of no dims, got ",
            grad_scale.sizes(), ". One factor covers all gradients.");
  if (grad_scale.is_cpu() && std::isnan(grad_scale.item<double>())) return;
  const at::NoGradGuard no_grad;
  std::map<at::Device, std::vector<const AdamWTensors*>, bool (*)(at::Device, at::Device)> on_gpu(
      [](at::Device a, at::Device b) { return a.index() < b.index(); });
  for (const AdamWTensors& each : tensors) {
    check(each);
    if (detail::has_adamw_kernel(each)) {
      on_gpu[each.parameter.device()].push_back(&each);
      continue;
    }
    const detail::AdamWFactors factors = detail::adamw_factors(options, each.step);
    if (detail::has_adamw_loop(each) && grad_scale.is_cpu()) {
      detail::adamw_cpu(each, factors, grad_scale.item<double>() * (options.maximize ? -1 : 1));
      continue;
    }
    const auto update = [&] { detail::adamw_aten(each, factors, options.maximize ? -grad_scale : grad_scale); };
    if (grad_scale.is_cpu()) {
      update();
    } else {
      detail::update_unless_nan(grad_scale, {each.parameter, each.exp_avg, each.exp_avg_sq, each.max_exp_avg_sq},
                                update);
    }
  }
  for (const auto& [device, on_device] : on_gpu) detail::adamw_cuda(on_device, options, grad_scale);
}

}  // namespace d9d::kernels
