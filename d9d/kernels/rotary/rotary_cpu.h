// rotary_aten.h as one loop over float, double or bfloat16 on the CPU.
#pragma once

#include "d9d/kernels/rotary/rotary_aten.h"

namespace d9d::kernels::detail {

// x may be strided; the tables are contiguous.
[[nodiscard]] at::Tensor rotate_cpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                    RotaryStyle style, RotaryPass pass);

}  // namespace d9d::kernels::detail
