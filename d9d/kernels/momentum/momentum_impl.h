// Implementations of momentum_. `cpu` updates a parameter and its buffer in a single loop, `aten` runs on any device,
// and `cuda` updates many parameters in a launch.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/momentum/momentum.h"

namespace d9d::kernels::detail {

// True if momentum_cpu takes these tensors: contiguous, on the CPU, of dtypes that it has a loop for.
[[nodiscard]] bool has_momentum_loop(const MomentumTensors& tensors);
// True if momentum_cuda takes these tensors.
[[nodiscard]] bool has_momentum_kernel(const MomentumTensors& tensors);

// Gradients are multiplied by grad_scale; as a tensor it is 0-dim, on any device.
void momentum_cpu(const MomentumTensors& tensors, const MomentumFactors& factors, double grad_scale);
void momentum_aten(const MomentumTensors& tensors, const MomentumFactors& factors, const at::Tensor& grad_scale);
// All tensors are on one device.
void momentum_cuda(const std::vector<const MomentumTensors*>& tensors, const MomentumFactors& factors,
                   const at::Tensor& grad_scale);

}  // namespace d9d::kernels::detail
