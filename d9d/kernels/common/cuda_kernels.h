// Decides which tensors the CUDA kernels of this library compute; all others go through ATen.
//
// Example
//   return has_cuda_kernels(x) ? silu_mul_forward_cuda(gate, up) : silu_mul_forward_aten(gate, up);
#pragma once

#include <ATen/core/TensorBase.h>

#include "d9d/base/dtype.h"

namespace d9d::kernels::detail {

// True if this build has CUDA kernels and the device is a Hopper GPU: the kernels are compiled for sm_90a.
[[nodiscard]] bool has_cuda_kernels(c10::Device device);

// True if this build has kernels for the tensor's GPU and its scalar type is one of Dtype.
[[nodiscard]] bool has_cuda_kernels(const at::TensorBase& tensor);

// The Dtype of the tensor's scalar type. Any other scalar type is a bug of the caller (D9D_ASSERT).
[[nodiscard]] Dtype dtype_of(const at::TensorBase& tensor);

}  // namespace d9d::kernels::detail
