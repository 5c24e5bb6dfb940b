#include <limits>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/norm_rotary/norm_rotary_impl.h"
#include "d9d/kernels/norm_rotary/norm_rotary_kernel.h"
#include "d9d/kernels/rotary/head_tensors.h"

namespace d9d::kernels::detail {
namespace {

// The tables as the kernel reads them: both in the dtype of the heads, or both in fp32.
struct Tables {
  Tables(const NormRotaryTensors& tensors, at::ScalarType dtype) {
    const bool are_of_heads = tensors.cos.scalar_type() == dtype && tensors.sin.scalar_type() == dtype;
    cos = fitting_numbers(tensors.cos, are_of_heads ? dtype : at::kFloat);
    sin = fitting_numbers(tensors.sin, are_of_heads ? dtype : at::kFloat);
  }
  at::Tensor cos;
  at::Tensor sin;
};

// The weights as the kernel reads them: both in the dtype of the heads, or both in fp32.
QueriesAndKeys fitting_weights(const NormRotaryTensors& tensors) {
  const at::ScalarType dtype = tensors.x[0].scalar_type();
  const bool are_of_heads = tensors.weights[0].scalar_type() == dtype && tensors.weights[1].scalar_type() == dtype;
  const auto fitting = [&](std::size_t i) {
    return fitting_numbers(tensors.weights[i], are_of_heads ? dtype : at::kFloat);
  };
  return {fitting(0), fitting(1)};
}

NormRotaryInputs inputs_of(const QueriesAndKeys& x, const QueriesAndKeys& weights, const Tables& tables,
                           const NormRotaryOptions& options) {
  const at::Tensor& like = x[0];
  NormRotaryInputs inputs{.dtype = dtype_of(like),
                          .weight_dtype = dtype_of(weights[0]),
                          .table_dtype = dtype_of(tables.cos),
                          .shape = {.num_tokens = like.size(0) * like.size(1),
                                    .num_positions = like.size(1),
                                    .num_table_rows = tables.cos.size(0) * tables.cos.size(1),
                                    .head_dim = static_cast<int>(like.size(3)),
                                    .rotary_dim = static_cast<int>(tables.cos.size(2)),
                                    .num_heads = {static_cast<int>(x[0].size(2)), static_cast<int>(x[1].size(2))}},
                          .is_interleaved = options.style == RotaryStyle::kInterleaved,
                          .zero_centered = options.zero_centered,
                          .eps = options.eps,
                          .cos = tables.cos.const_data_ptr(),
                          .sin = tables.sin.const_data_ptr()};
  for (std::size_t i = 0; i < 2; ++i) {
    inputs.x[i] = view_of(x[i]);
    inputs.weight[i] = weights[i].const_data_ptr();
  }
  return inputs;
}

// Uninitialised gradients of queries and keys, [B, S, heads, D] with evenly spaced tokens: in front of the columns of
// `beside` if its rows have room for them, otherwise in a new buffer.
QueriesAndKeys places_of_gradients(const QueriesAndKeys& x, const at::Tensor& beside) {
  if (beside.defined()) {
    const auto room = column_slices_before(beside, x[0], x[1], /*num_column_dims=*/2);
    if (room && fits_heads_kernel(room->first)) return {room->first, room->second};
  }
  const auto slices = empty_column_slices(x[0], x[1], /*num_column_dims=*/2);
  return {slices.first, slices.second};
}

}  // namespace

bool fits_norm_rotary_kernel(const NormRotaryTensors& tensors) {
  const at::Tensor& q = tensors.x[0];
  for (const at::Tensor& x : tensors.x)
    if (x.numel() == 0 || x.numel() / x.size(3) > std::numeric_limits<std::int32_t>::max()) return false;
  return has_cuda_kernels(q) && has_heads_kernel(q.scalar_type(), q.size(3), tensors.cos.size(2));
}

QueriesAndKeys norm_rotary_forward_cuda(const NormRotaryTensors& tensors, const NormRotaryOptions& options) {
  const c10::DeviceGuard guard(tensors.x[0].device());
  const Tables tables(tensors, tensors.x[0].scalar_type());
  const QueriesAndKeys weights = fitting_weights(tensors);
  const QueriesAndKeys x = {fitting_heads(tensors.x[0]), fitting_heads(tensors.x[1])};
  NormRotaryForwardArgs args{.inputs = inputs_of(x, weights, tables, options)};
  join_batches(args.inputs.shape, {&args.inputs.x[0], &args.inputs.x[1]});
  QueriesAndKeys out;
  for (std::size_t i = 0; i < 2; ++i) {
    out[i] = at::empty(x[i].sizes(), x[i].options());
    args.out[i] = out[i].mutable_data_ptr();
  }
  launch_norm_rotary_forward(args, current_cuda_stream(x[0].device()));
  return out;
}

NormRotaryBackward norm_rotary_backward_cuda(const QueriesAndKeys& grad_out, const NormRotaryTensors& tensors,
                                             const NormRotaryOptions& options, const NormRotaryWanted& wanted,
                                             const at::Tensor& beside) {
  const c10::DeviceGuard guard(tensors.x[0].device());
  const Tables tables(tensors, tensors.x[0].scalar_type());
  const QueriesAndKeys weights = fitting_weights(tensors);
  const QueriesAndKeys x = {fitting_heads(tensors.x[0]), fitting_heads(tensors.x[1])};
  NormRotaryBackwardArgs args{.inputs = inputs_of(x, weights, tables, options)};
  NormRotaryBackward result;
  const auto wants_x = [&](std::size_t i) { return wanted.x[i] && grad_out[i].defined(); };
  if (wants_x(0) && wants_x(1)) {
    result.x = places_of_gradients(tensors.x, beside);
  } else {
    for (std::size_t i = 0; i < 2; ++i)
      if (wants_x(i)) result.x[i] = at::empty(tensors.x[i].sizes(), tensors.x[i].options());
  }
  QueriesAndKeys grads;
  bool is_anything_wanted = false;
  for (std::size_t i = 0; i < 2; ++i) {
    const bool wants_weight = wanted.weights[i] && grad_out[i].defined();
    is_anything_wanted |= wants_x(i) || wants_weight;
    if (!wants_x(i) && !wants_weight) {
      args.inputs.shape.num_heads[i] = 0;
      continue;
    }
    grads[i] = fitting_heads(grad_out[i]);
    args.grad_out[i] = view_of(grads[i]);
    if (wants_x(i)) {
      args.grad_x[i] = result.x[i].mutable_data_ptr();
      args.grad_x_stride[i] = static_cast<std::uint32_t>(result.x[i].stride(1));
    }
    if (wants_weight) {
      result.weights[i] = at::empty(weights[i].sizes(), weights[i].options());
      args.grad_weight[i] = result.weights[i].mutable_data_ptr();
    }
  }
  if (!is_anything_wanted) return result;
  join_batches(args.inputs.shape, {&args.inputs.x[0], &args.inputs.x[1], &args.grad_out[0], &args.grad_out[1]});
  at::Tensor partials;
  if (result.weights[0].defined() || result.weights[1].defined()) {
    partials = at::empty({kNormRotaryPartials, tensors.x[0].size(3)}, tensors.x[0].options().dtype(at::kFloat));
    args.partials = partials.mutable_data_ptr<float>();
  }
  launch_norm_rotary_backward(args, current_cuda_stream(tensors.x[0].device()));
  for (std::size_t i = 0; i < 2; ++i)
    if (result.weights[i].defined()) result.weights[i] = result.weights[i].to(tensors.weights[i].scalar_type());
  return result;
}

}  // namespace d9d::kernels::detail
