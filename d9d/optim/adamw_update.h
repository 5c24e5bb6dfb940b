// One AdamW update of one parameter: `cpu` is a single loop over all its tensors, `aten` runs on any device.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::detail {

// All of the parameter's shape.
struct AdamWTensors {
  at::Tensor parameter;
  at::Tensor grad;
  at::Tensor exp_avg;         // fp32, fp64 for fp64 parameters
  at::Tensor exp_avg_sq;      // as exp_avg
  at::Tensor max_exp_avg_sq;  // as exp_avg, undefined without amsgrad
};

// Numbers that are the same for every element.
struct AdamWFactors {
  double parameter_decay = 0;  // 1 - lr * weight_decay
  double beta1 = 0;
  double beta2 = 0;
  double step_size = 0;              // lr / (1 - beta1^step)
  double bias_correction2_sqrt = 0;  // sqrt(1 - beta2^step)
  double eps = 0;
};

// True when adamw_update_cpu takes these: contiguous, on the CPU, of dtypes it has a loop for.
[[nodiscard]] bool has_adamw_loop(const AdamWTensors& tensors);

// Every gradient counts grad_scale times.
void adamw_update_cpu(const AdamWTensors& tensors, const AdamWFactors& factors, double grad_scale);
// grad_scale 0-dim.
void adamw_update_aten(const AdamWTensors& tensors, const AdamWFactors& factors, const at::Tensor& grad_scale);

}  // namespace d9d::detail
