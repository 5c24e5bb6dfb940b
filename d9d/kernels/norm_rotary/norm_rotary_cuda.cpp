#include "d9d/kernels/norm_rotary/norm_rotary_cuda.h"

#include <limits>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/device/column_slices.h"
#include "d9d/kernels/device/cuda_kernels.h"
#include "d9d/kernels/norm_rotary/norm_rotary_kernel.h"
#include "d9d/kernels/rotary/slots.h"

namespace d9d::kernels::detail {
namespace {

constexpr std::int64_t kBytesOfPiece = 16;
constexpr std::int64_t kMaxSlots = 32;  // a warp has a thread for each

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kBytesOfPiece == 0;
}

bool fits_heads(const at::Tensor& heads) {
  const std::int64_t width = kBytesOfPiece / heads.element_size();
  if (heads.stride(3) != 1 || !is_aligned(heads) || heads.stride(0) % width != 0) return false;
  for (const std::int64_t stride : {heads.stride(1), heads.stride(2)})
    if (stride < 0 || stride % width != 0 || stride > std::numeric_limits<std::uint32_t>::max()) return false;
  return true;
}

bool fits_weight(const at::Tensor& weight, at::ScalarType dtype) {
  return weight.is_contiguous() && is_aligned(weight) &&
         (weight.scalar_type() == dtype || weight.scalar_type() == at::kFloat);
}

HeadsView view_of(const at::Tensor& heads) {
  return {.data = heads.const_data_ptr(),
          .batch_stride = heads.stride(0),
          .position_stride = static_cast<std::uint32_t>(heads.stride(1)),
          .head_stride = static_cast<std::uint32_t>(heads.stride(2))};
}

// The tables as the kernel reads them, of one dtype: that of the heads or fp32.
struct Tables {
  Tables(const NormRotaryTensors& tensors, at::ScalarType dtype) {
    const bool are_of_heads = tensors.cos.scalar_type() == dtype && tensors.sin.scalar_type() == dtype;
    const auto rows_of = [&](const at::Tensor& table) {
      const at::Tensor rows = table.to(are_of_heads ? dtype : at::kFloat).contiguous();
      return is_aligned(rows) ? rows : rows.clone();
    };
    cos = rows_of(tensors.cos);
    sin = rows_of(tensors.sin);
  }
  at::Tensor cos;
  at::Tensor sin;
};

// Both weights have the kernel's one dtype then.
at::Tensor weight_of(const NormRotaryTensors& tensors, std::size_t i) {
  const bool are_alike = tensors.weights[0].scalar_type() == tensors.weights[1].scalar_type();
  return are_alike ? tensors.weights[i] : tensors.weights[i].to(at::kFloat);
}

NormRotaryInputs inputs_of(const NormRotaryTensors& tensors, const QueriesAndKeys& weights, const Tables& tables,
                           const NormRotaryOptions& options) {
  const at::Tensor& like = tensors.x[0];
  NormRotaryInputs inputs{.dtype = dtype_of(like),
                          .weight_dtype = dtype_of(weights[0]),
                          .table_dtype = dtype_of(tables.cos),
                          .num_tokens = like.size(0) * like.size(1),
                          .num_positions = like.size(1),
                          .num_table_rows = tables.cos.size(0) * tables.cos.size(1),
                          .head_dim = static_cast<int>(like.size(3)),
                          .rotary_dim = static_cast<int>(tables.cos.size(2)),
                          .is_interleaved = options.style == RotaryStyle::kInterleaved,
                          .zero_centered = options.zero_centered,
                          .eps = options.eps,
                          .cos = tables.cos.const_data_ptr(),
                          .sin = tables.sin.const_data_ptr()};
  for (std::size_t i = 0; i < 2; ++i) {
    inputs.num_heads[i] = static_cast<int>(tensors.x[i].size(2));
    inputs.x[i] = view_of(tensors.x[i]);
    inputs.weight[i] = weights[i].const_data_ptr();
  }
  return inputs;
}

}  // namespace

bool fits_norm_rotary_kernel(const NormRotaryTensors& tensors) {
  const at::Tensor& q = tensors.x[0];
  const at::Tensor& k = tensors.x[1];
  const at::ScalarType dtype = q.scalar_type();
  const std::int64_t rotary_dim = tensors.cos.size(2);
  if (!has_cuda_kernels(q) || dtype == at::kDouble || q.numel() == 0 || k.numel() == 0 || rotary_dim == 0) return false;
  if (!fits_weight(tensors.weights[0], dtype) || !fits_weight(tensors.weights[1], dtype)) return false;
  const std::int64_t width = kBytesOfPiece / q.element_size();
  return q.size(3) % width == 0 && rotary_dim % (2 * width) == 0 &&
         num_slots(q.size(3), rotary_dim, width) <= kMaxSlots && fits_heads(q) && fits_heads(k);
}

QueriesAndKeys norm_rotary_forward_cuda(const NormRotaryTensors& tensors, const NormRotaryOptions& options) {
  const c10::DeviceGuard guard(tensors.x[0].device());
  const Tables tables(tensors, tensors.x[0].scalar_type());
  const QueriesAndKeys weights = {weight_of(tensors, 0), weight_of(tensors, 1)};
  NormRotaryForwardArgs args{.inputs = inputs_of(tensors, weights, tables, options)};
  QueriesAndKeys out;
  for (std::size_t i = 0; i < 2; ++i) {
    out[i] = at::empty(tensors.x[i].sizes(), tensors.x[i].options());
    args.out[i] = out[i].mutable_data_ptr();
  }
  launch_norm_rotary_forward(args, current_cuda_stream(tensors.x[0].device()));
  return out;
}

NormRotaryBackward norm_rotary_backward_cuda(const QueriesAndKeys& grad_out, const NormRotaryTensors& tensors,
                                             const NormRotaryOptions& options, const NormRotaryWanted& wanted) {
  const c10::DeviceGuard guard(tensors.x[0].device());
  const Tables tables(tensors, tensors.x[0].scalar_type());
  const QueriesAndKeys weights = {weight_of(tensors, 0), weight_of(tensors, 1)};
  NormRotaryBackwardArgs args{.inputs = inputs_of(tensors, weights, tables, options)};
  NormRotaryBackward result;
  const auto wants_x = [&](std::size_t i) { return wanted.x[i] && grad_out[i].defined(); };
  if (wants_x(0) && wants_x(1)) {
    std::tie(result.x[0], result.x[1]) = empty_column_slices(tensors.x[0], tensors.x[1], /*num_column_dims=*/2);
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
      args.inputs.num_heads[i] = 0;
      continue;
    }
    grads[i] = fits_heads(grad_out[i]) ? grad_out[i] : grad_out[i].clone(at::MemoryFormat::Contiguous);
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
