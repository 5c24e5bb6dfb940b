#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/row_tensor.h"
#include "d9d/kernels/rms_norm/rms_norm_impl.h"
#include "d9d/kernels/rms_norm/rms_norm_kernel.h"

namespace d9d::kernels::detail {
namespace {

at::Tensor empty_contiguous(const at::Tensor& like) { return at::empty(like.sizes(), like.options()); }

AddRmsNormForward forward(const at::Tensor& x, const at::Tensor* residual, const at::Tensor& weight,
                          RmsNormOptions options) {
  const c10::DeviceGuard guard(x.device());
  AddRmsNormForward result{.norm = empty_contiguous(x)};
  if (residual != nullptr) result.sum = empty_contiguous(x);
  if (x.numel() == 0) return result;
  const RowTensor x_rows = row_tensor(x);
  const RowTensor residual_rows = residual == nullptr ? RowTensor{} : row_tensor(*residual);
  const at::Tensor factors = weight.contiguous();
  launch_rms_norm_forward({.dtype = dtype_of(x),
                           .weight_dtype = dtype_of(factors),
                           .num_rows = x.numel() / x.size(-1),
                           .num_columns = x.size(-1),
                           .x = x_rows.tensor.const_data_ptr(),
                           .x_rows = x_rows.rows,
                           .residual = residual == nullptr ? nullptr : residual_rows.tensor.const_data_ptr(),
                           .residual_rows = residual_rows.rows,
                           .sum = residual == nullptr ? nullptr : result.sum.mutable_data_ptr(),
                           .weight = factors.const_data_ptr(),
                           .zero_centered = options.zero_centered,
                           .eps = options.eps,
                           .out = result.norm.mutable_data_ptr()},
                          current_cuda_stream(x.device()));
  return result;
}

}  // namespace

at::Tensor rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight, RmsNormOptions options) {
  return forward(x, nullptr, weight, options).norm;
}

AddRmsNormForward add_rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                                            RmsNormOptions options) {
  return forward(x, &residual, weight, options);
}

RmsNormBackward rms_norm_backward_cuda(const at::Tensor& grad_out, const at::Tensor& grad_sum, const at::Tensor& x,
                                       const at::Tensor& weight, RmsNormOptions options, RmsNormWanted wanted) {
  const c10::DeviceGuard guard(x.device());
  const bool is_empty = x.numel() == 0;
  const std::int64_t num_columns = x.size(-1);
  RmsNormBackward result;
  if (wanted.x) result.x = empty_contiguous(x);
  if (wanted.scale) result.scale = is_empty ? at::zeros_like(weight) : at::empty({num_columns}, weight.options());
  if (is_empty || (!wanted.x && !wanted.scale)) return result;
  const RowTensor grad_rows = row_tensor(grad_out);
  const RowTensor grad_sum_rows = grad_sum.defined() ? row_tensor(grad_sum) : RowTensor{};
  const RowTensor x_rows = row_tensor(x);
  const at::Tensor factors = weight.contiguous();
  at::Tensor partials;
  if (wanted.scale)
    partials = at::empty({kRmsNormPartials, num_columns}, x.options().dtype(at::toOpMathType(x.scalar_type())));
  launch_rms_norm_backward({.dtype = dtype_of(x),
                            .weight_dtype = dtype_of(factors),
                            .num_rows = x.numel() / num_columns,
                            .num_columns = num_columns,
                            .grad_out = grad_rows.tensor.const_data_ptr(),
                            .grad_out_rows = grad_rows.rows,
                            .x = x_rows.tensor.const_data_ptr(),
                            .x_rows = x_rows.rows,
                            .grad_sum = grad_sum.defined() ? grad_sum_rows.tensor.const_data_ptr() : nullptr,
                            .grad_sum_rows = grad_sum_rows.rows,
                            .weight = factors.const_data_ptr(),
                            .zero_centered = options.zero_centered,
                            .eps = options.eps,
                            .grad_x = wanted.x ? result.x.mutable_data_ptr() : nullptr,
                            .partials = wanted.scale ? partials.mutable_data_ptr() : nullptr,
                            .grad_weight = wanted.scale ? result.scale.mutable_data_ptr() : nullptr},
                           current_cuda_stream(x.device()));
  return result;
}

}  // namespace d9d::kernels::detail
