// rms_norm_aten.h as loops over contiguous float, double or bfloat16 on the CPU. A pass reads x from memory once, where
// ATen reads it once per operation.
#pragma once

#include "d9d/kernels/rms_norm/rms_norm_aten.h"

namespace d9d::kernels::detail {

[[nodiscard]] RmsNormForward rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& scale, double eps);
[[nodiscard]] RmsNormBackward rms_norm_backward_cpu(const at::Tensor& grad_out, const at::Tensor& x,
                                                    const at::Tensor& scale, const at::Tensor& inv_rms,
                                                    RmsNormWanted wanted);

}  // namespace d9d::kernels::detail
