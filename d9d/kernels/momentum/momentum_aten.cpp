#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/kernels/momentum/momentum_impl.h"

namespace d9d::kernels::detail {

void momentum_aten(const MomentumTensors& tensors, const MomentumFactors& factors, const at::Tensor& grad_scale) {
  const at::ScalarType wide = at::toOpMathType(tensors.parameter.scalar_type());
  const at::Tensor parameter = tensors.parameter.to(wide);
  at::Tensor grad = tensors.grad.to(wide) * (factors.maximize ? -grad_scale : grad_scale).to(wide);
  if (factors.gradient_decay != 0) grad.add_(parameter, factors.gradient_decay);
  at::Tensor update = grad * factors.update_grad;
  if (tensors.buffer.defined()) {
    update.add_(tensors.buffer, factors.update_buffer);
    tensors.buffer.mul_(factors.buffer_decay).add_(grad, factors.buffer_grad);
  }
  if (factors.takes_sign) update = at::where(update.isnan(), update, update.sign());
  tensors.parameter.copy_((parameter * factors.parameter_decay).sub_(update, factors.step_size));
}

}  // namespace d9d::kernels::detail
