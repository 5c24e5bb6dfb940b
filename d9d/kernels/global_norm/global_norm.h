// The norm of all elements of many tensors on a GPU, read once, in two launches for hundreds of tensors.
//
// Example
//   if (has_global_norm_kernel(gradients)) return global_norm_cuda(gradients, NormOrder::kTwo);
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/global_norm/norm_order.h"

namespace d9d::kernels::detail {

// True for at least one tensor, all on one GPU that the kernels of this build are for.
[[nodiscard]] bool has_global_norm_kernel(at::TensorList tensors);

// fp64, 0-dim, on the device, which is not waited for. Magnitudes are raised in fp32 (double for double tensors), and
// at most 32 of them are summed so; all else is summed in fp64. The order of additions depends on the sizes alone. NaN
// stays NaN.
[[nodiscard]] at::Tensor global_norm_cuda(at::TensorList tensors, NormOrder order);

}  // namespace d9d::kernels::detail
