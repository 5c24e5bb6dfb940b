#include "d9d/kernels/momentum/momentum.h"

#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/unless_nan.h"
#include "d9d/kernels/momentum/momentum_impl.h"

namespace d9d::kernels {
namespace {

void check(const MomentumTensors& tensors) {
  const at::Tensor& parameter = tensors.parameter;
  D9D_CHECK(parameter.is_floating_point() && tensors.grad.is_floating_point(), ConfigError,
            "[kernels::momentum] expected floating parameters and gradients, got ", parameter.scalar_type(), " and ",
            tensors.grad.scalar_type(), ". Leave other tensors out.");
  for (const at::Tensor* tensor : {&tensors.grad, &tensors.buffer}) {
    if (!tensor->defined()) continue;
    D9D_CHECK(tensor->sizes() == parameter.sizes() && tensor->device() == parameter.device(), ConfigError,
              "[kernels::momentum] expected gradient and buffer as ", parameter.sizes(), " on ", parameter.device(),
              " like their parameter, got ", tensor->sizes(), " on ", tensor->device(), ". Make them agree.");
  }
  const at::ScalarType wide = at::toOpMathType(parameter.scalar_type());
  D9D_CHECK(!tensors.buffer.defined() || tensors.buffer.scalar_type() == wide, ConfigError,
            "[kernels::momentum] expected a buffer of ", wide, ", got ", tensors.buffer.scalar_type(),
            ". Allocate it so.");
}

}  // namespace

void momentum_(const std::vector<MomentumTensors>& tensors, const MomentumFactors& factors,
               const at::Tensor& grad_scale) {
  D9D_CHECK(grad_scale.dim() == 0, ConfigError, "[kernels::momentum] expected grad_scale of no dims, got ",
            grad_scale.sizes(), ". One factor covers all gradients.");
  if (grad_scale.is_cpu() && std::isnan(grad_scale.item<double>())) return;
  const at::NoGradGuard no_grad;
  std::map<at::DeviceIndex, std::vector<const MomentumTensors*>> on_gpu;
  for (const MomentumTensors& each : tensors) {
    check(each);
    if (detail::has_momentum_kernel(each)) {
      on_gpu[each.parameter.device().index()].push_back(&each);
    } else if (detail::has_momentum_loop(each) && grad_scale.is_cpu()) {
      detail::momentum_cpu(each, factors, grad_scale.item<double>());
    } else if (grad_scale.is_cpu()) {
      detail::momentum_aten(each, factors, grad_scale);
    } else {
      detail::update_unless_nan(grad_scale, {each.parameter, each.buffer},
                                [&] { detail::momentum_aten(each, factors, grad_scale); });
    }
  }
  for (const auto& [device, on_device] : on_gpu) detail::momentum_cuda(on_device, factors, grad_scale);
}

}  // namespace d9d::kernels
