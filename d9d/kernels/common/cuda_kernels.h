// Which tensors the CUDA kernels of this library take; all others go through ATen.
//
// Example
//   return has_cuda_kernels(x) ? silu_mul_forward_cuda(gate, up) : silu_mul_forward_aten(gate, up);
#pragma once

#include <ATen/core/TensorBase.h>

#include "d9d/base/dtype.h"

namespace d9d::kernels::detail {

// True when this build has kernels for the GPU (Hopper: they are compiled for sm_90a).
[[nodiscard]] bool has_cuda_kernels(c10::Device device);

// True when this build has kernels for the GPU that the tensor is on and the tensor is of a Dtype.
[[nodiscard]] bool has_cuda_kernels(const at::TensorBase& tensor);

// Of the four types that a Dtype names; others are a bug.
[[nodiscard]] Dtype dtype_of(const at::TensorBase& tensor);

}  // namespace d9d::kernels::detail
