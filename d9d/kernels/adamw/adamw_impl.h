// Implementations of adamw_. `cpu` updates a parameter and its moments in a single loop, `aten` runs on any device, and
// `cuda` updates many parameters in a launch.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/adamw/adamw.h"

namespace d9d::kernels::detail {

// Numbers that are the same for every element.
struct AdamWFactors {
  double parameter_decay = 0;  // 1 - lr * weight_decay, 1 if the decay is not decoupled
  double gradient_decay = 0;   // weight_decay if it is not decoupled, otherwise 0
  double beta1 = 0;
  double beta2 = 0;
  double step_size = 0;              // lr / (1 - beta1^step)
  double bias_correction2_sqrt = 0;  // sqrt(1 - beta2^step)
  double eps = 0;
};
[[nodiscard]] AdamWFactors adamw_factors(const AdamWOptions& options, std::int64_t step);

// The random stream that rounds the parameter; those of the moments have the next two steps.
[[nodiscard]] RandomStream rounding_stream(const AdamWTensors& tensors);

// True if adamw_cpu takes these tensors: contiguous, on the CPU, of dtypes that it has a loop for.
[[nodiscard]] bool has_adamw_loop(const AdamWTensors& tensors);
// True if adamw_cuda takes these tensors.
[[nodiscard]] bool has_adamw_kernel(const AdamWTensors& tensors);

// Gradients are multiplied by grad_scale; as a tensor it is 0-dim, on any device.
void adamw_cpu(const AdamWTensors& tensors, const AdamWFactors& factors, double grad_scale);
void adamw_aten(const AdamWTensors& tensors, const AdamWFactors& factors, const at::Tensor& grad_scale);
// All tensors are on one device.
void adamw_cuda(const std::vector<const AdamWTensors*>& tensors, const AdamWOptions& options,
                const at::Tensor& grad_scale);

}  // namespace d9d::kernels::detail
