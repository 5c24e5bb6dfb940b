// rms_norm_aten.h, alone and after an addition, in one pass over memory, for x and weight that has_cuda_kernels()
// takes.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/rms_norm/rms_norm_aten.h"

namespace d9d::kernels::detail {

struct RmsNormOptions {
  double eps = 0;
  bool zero_centered = false;
};

struct AddRmsNormForward {
  at::Tensor sum;   // x + residual, rounded to their dtype
  at::Tensor norm;  // of `sum`
};

// Legend   N = columns, A = accumulator dtype. x, residual, gradients [..., N] of one dtype, any strides; weight [N] of
//          a Dtype; results contiguous.
[[nodiscard]] at::Tensor rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight, RmsNormOptions options);
[[nodiscard]] AddRmsNormForward add_rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& residual,
                                                          const at::Tensor& weight, RmsNormOptions options);

// `x` is the tensor that was normalised. If `grad_sum` is defined, it is added to the gradient of x. The result's
// `scale` is the gradient of the weight, in the weight's dtype.
[[nodiscard]] RmsNormBackward rms_norm_backward_cuda(const at::Tensor& grad_out, const at::Tensor& grad_sum,
                                                     const at::Tensor& x, const at::Tensor& weight,
                                                     RmsNormOptions options, RmsNormWanted wanted);

}  // namespace d9d::kernels::detail
