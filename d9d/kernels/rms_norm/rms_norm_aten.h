// The mathematics of rms_norm on plain tensors of any device, without autograd. Other implementations are measured
// against it.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// Legend   R = rows, N = columns, A = accumulator dtype: fp64 for fp64 x, otherwise fp32.
struct RmsNormForward {
  at::Tensor out;      // [R, N], x's dtype
  at::Tensor inv_rms;  // [R], A
};
struct RmsNormBackward {
  at::Tensor x;      // [R, N], x's dtype; undefined unless wanted
  at::Tensor scale;  // [N], A; undefined unless wanted
};
struct RmsNormWanted {
  bool x = false;
  bool scale = false;
};

// x [R, N]; scale [N] in A: the weight, plus one when zero-centred.
[[nodiscard]] RmsNormForward rms_norm_forward_aten(const at::Tensor& x, const at::Tensor& scale, double eps);
[[nodiscard]] RmsNormBackward rms_norm_backward_aten(const at::Tensor& grad_out, const at::Tensor& x,
                                                     const at::Tensor& scale, const at::Tensor& inv_rms,
                                                     RmsNormWanted wanted);

}  // namespace d9d::kernels::detail
