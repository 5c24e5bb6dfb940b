// rotary_aten.h for tensors that has_cuda_kernels() takes, in one pass over the memory of queries and keys.
#pragma once

#include "d9d/kernels/rotary/rotary_aten.h"

namespace d9d::kernels::detail {

struct RotatedHeads {
  at::Tensor first;
  at::Tensor second;
};

// Either tensor may be undefined; its result is then undefined too. cos and sin may have any floating dtype.
[[nodiscard]] RotatedHeads rotate_cuda(const at::Tensor& first, const at::Tensor& second, const at::Tensor& cos,
                                       const at::Tensor& sin, RotaryStyle style, RotaryPass pass);

}  // namespace d9d::kernels::detail
