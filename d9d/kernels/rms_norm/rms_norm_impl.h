// Implementations of rms_norm and add_rms_norm without autograd. `aten` is the mathematics on tensors of any device,
// against which the others are measured; `cpu` loops over contiguous float, double or bfloat16 and reads x from memory
// once, where ATen reads it once per operation; `cuda` takes what has_cuda_kernels() takes, alone and after an
// addition, in one pass over memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"

namespace d9d::kernels::detail {

inline void check_rms_norm_arguments(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  D9D_CHECK(weight.dim() == 1 && weight.size(0) > 0 && x.dim() > 0 && x.size(-1) == weight.size(0), ConfigError,
            "[kernels::", op, "] expected x [..., N] and weight [N] with N > 0, got x ", x.sizes(), " and weight ",
            weight.sizes(), ". Normalise over the last dim.");
  D9D_CHECK(x.is_floating_point() && weight.is_floating_point(), ConfigError, "[kernels::", op,
            "] expected floating x and weight, got ", x.scalar_type(), " and ", weight.scalar_type(),
            ". Cast them first.");
  D9D_CHECK(x.device() == weight.device(), ConfigError, "[kernels::", op, "] expected x and weight on one device, got ",
            x.device(), " and ", weight.device(), ". Move one of the two.");
}

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

[[nodiscard]] RmsNormForward rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& scale, double eps);
[[nodiscard]] RmsNormBackward rms_norm_backward_cpu(const at::Tensor& grad_out, const at::Tensor& x,
                                                    const at::Tensor& scale, const at::Tensor& inv_rms,
                                                    RmsNormWanted wanted);

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
