// The norm of all gradients together, and the factor that clips it (Pascanu et al., arXiv:1211.5063), as
// torch.nn.utils.clip_grad_norm_ computes them.
//
// Example
//   const at::Tensor norm = global_grad_norm(gradients, 2.0);
//   optimizer.step(learning_rate, clip_coefficient(norm, /*max_norm=*/1.0));
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d {

// Returns (sum over all elements of |g|^order)^(1/order), or the largest |g| for an infinite order: fp64, 0-dim, on the
// gradients' device, without waiting for it. Powers are computed and summed in at least fp32, and the sums of blocks
// and tensors are added in fp64. The order of additions depends only on the shapes. NaN is propagated. Returns 0 on the
// CPU if there are no gradients. Local: covers this rank's elements. Throws ConfigError for orders other than 1, 2, 3
// and infinity, for undefined, sparse or integer gradients, and for gradients on several devices.
[[nodiscard]] at::Tensor global_grad_norm(at::TensorList gradients, double order);

// Returns min(1, max_norm / (norm + 1e-6)), 0-dim like norm. Throws ConfigError unless max_norm > 0.
[[nodiscard]] at::Tensor clip_coefficient(const at::Tensor& norm, double max_norm);

}  // namespace d9d
