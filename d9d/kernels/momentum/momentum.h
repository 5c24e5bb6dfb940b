// One step of an optimiser that keeps at most one average of gradients, for many tensors in one call: gradient descent
// with momentum (torch.optim.SGD) and Lion (Chen et al., arXiv:2302.06675).
//
// Example
//   momentum_({{.parameter = weight, .grad = grad, .buffer = velocity}},
//             {.buffer_decay = 0.9, .update_buffer = 0.9, .step_size = 0.1}, /*grad_scale=*/at::ones({}, at::kDouble));
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// A parameter with its gradient and buffer. All tensors have the parameter's shape and device.
struct MomentumTensors {
  at::Tensor parameter;  // float, double or half precision
  at::Tensor grad;       // any floating dtype
  at::Tensor buffer;     // fp32 (fp64 for fp64 parameters); undefined: none
};

// With parameter p, buffer b and g = +-grad_scale * grad + gradient_decay * p, of which the sign is - if `maximize`:
//   update u = update_buffer * b + update_grad * g, and its sign if `takes_sign`
//   b = buffer_decay * b + buffer_grad * g
//   p = parameter_decay * p - step_size * u
struct MomentumFactors {
  double gradient_decay = 0;
  double buffer_decay = 0;
  double buffer_grad = 1;
  double update_buffer = 0;
  double update_grad = 1;
  double parameter_decay = 1;
  double step_size = 0;
  bool takes_sign = false;  // of zero it is zero, of NaN NaN; needs a buffer
  bool maximize = false;
};

// Updates parameters and buffers in place. grad_scale is 0-dim; if it is on a GPU, the call does not synchronise. If it
// is NaN, nothing changes. Computes in fp32, in double for double parameters, and rounds to nearest once. On Hopper one
// launch updates hundreds of tensors that agree in dtypes; strided tensors and other dtypes go through ATen. Throws
// ConfigError on shapes, devices and dtypes that do not fit.
void momentum_(const std::vector<MomentumTensors>& tensors, const MomentumFactors& factors,
               const at::Tensor& grad_scale);

}  // namespace d9d::kernels
