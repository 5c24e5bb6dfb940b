// The norm of all elements of many tensors on a GPU. It reads each element once and needs two launches for hundreds of
// tensors of one dtype.
//
// Example
//   if (has_global_norm_kernel(gradients)) return global_norm_cuda(gradients, NormOrder::kTwo);
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/global_norm/norm_order.h"

namespace d9d::kernels::detail {

// True if there is at least one tensor and all are on one GPU, with dtypes, that this build has kernels for.
[[nodiscard]] bool has_global_norm_kernel(at::TensorList tensors);

// Returns a 0-dim fp64 tensor on the device, without synchronising. Powers are computed in fp32 (fp64 for fp64
// tensors), in which at most 32 of them are added up; all other sums are in fp64. The order of additions depends on the
// sizes alone. NaN stays NaN.
[[nodiscard]] at::Tensor global_norm_cuda(at::TensorList tensors, NormOrder order);

}  // namespace d9d::kernels::detail
