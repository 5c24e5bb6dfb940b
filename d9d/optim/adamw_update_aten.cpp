#include <ATen/ATen.h>

#include "d9d/optim/adamw_update.h"

namespace d9d::detail {

void adamw_update_aten(const AdamWTensors& tensors, const AdamWFactors& factors, const at::Tensor& grad_scale) {
  const at::ScalarType wide = tensors.exp_avg.scalar_type();
  const at::Tensor grad = tensors.grad.to(wide) * grad_scale.to(wide);
  tensors.exp_avg.lerp_(grad, 1 - factors.beta1);
  tensors.exp_avg_sq.mul_(factors.beta2).addcmul_(grad, grad, 1 - factors.beta2);
  at::Tensor second_moment = tensors.exp_avg_sq;
  if (tensors.max_exp_avg_sq.defined()) {
    second_moment = tensors.max_exp_avg_sq;
    at::maximum_out(second_moment, second_moment, tensors.exp_avg_sq);
  }
  const at::Tensor denominator = second_moment.sqrt().div_(factors.bias_correction2_sqrt).add_(factors.eps);
  const at::Tensor decayed = tensors.parameter.to(wide) * factors.parameter_decay;
  tensors.parameter.copy_(decayed.addcdiv_(tensors.exp_avg, denominator, -factors.step_size));
}

}  // namespace d9d::detail
