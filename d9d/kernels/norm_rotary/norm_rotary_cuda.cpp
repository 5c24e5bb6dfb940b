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
  if (heads.stride(3) != 1 || !is_aligned(heads)) return false;
  const auto bytes_of = [&](std::int64_t dim) { return heads.stride(dim) * heads.element_size(); };
  for (const std::int64_t dim : {1, 2})
    if (bytes_of(dim) < 0 || bytes_of(dim) > std::numeric_limits<std::uint32_t>::max()) return false;
  return (bytes_of(0) | bytes_of(1) | bytes_of(2)) % kBytesOfPiece == 0;
}

at::Tensor fitting_heads(const at::Tensor& heads) {
  return fits_heads(heads) ? heads : heads.clone(at::MemoryFormat::Contiguous);
}

HeadsView view_of(const at::Tensor& heads) {
  return {.data = heads.const_data_ptr(),
          .batch_bytes = heads.stride(0) * heads.element_size(),
          .position_bytes = static_cast<std::uint32_t>(heads.stride(1) * heads.element_size()),
          .head_bytes = static_cast<std::uint32_t>(heads.stride(2) * heads.element_size())};
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

// The weights as the kernel reads them, both of one dtype: that of the heads or fp32.
QueriesAndKeys fitting_weights(const NormRotaryTensors& tensors) {
  const at::ScalarType dtype = tensors.x[0].scalar_type();
  const bool are_of_heads = tensors.weights[0].scalar_type() == dtype && tensors.weights[1].scalar_type() == dtype;
  QueriesAndKeys weights;
  for (std::size_t i = 0; i < 2; ++i) {
    weights[i] = tensors.weights[i].to(are_of_heads ? dtype : at::kFloat).contiguous();
    if (!is_aligned(weights[i])) weights[i] = weights[i].clone();
  }
  return weights;
}

// Whether tokens of a tensor follow each other with one stride.
bool has_one_token_stride(const HeadsView& heads, std::int64_t num_positions) {
  return heads.batch_bytes == num_positions * static_cast<std::int64_t>(heads.position_bytes);
}

// One batch instead of several, where it is the same: it spares the kernel a division.
void join_batches(NormRotaryInputs& inputs, std::initializer_list<const HeadsView*> views) {
  if (inputs.num_table_rows != inputs.num_tokens) return;
  for (const HeadsView* view : views)
    if (view->data != nullptr && !has_one_token_stride(*view, inputs.num_positions)) return;
  inputs.num_positions = inputs.num_tokens;
}

NormRotaryInputs inputs_of(const QueriesAndKeys& x, const QueriesAndKeys& weights, const Tables& tables,
                           const NormRotaryOptions& options) {
  const at::Tensor& like = x[0];
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
    inputs.num_heads[i] = static_cast<int>(x[i].size(2));
    inputs.x[i] = view_of(x[i]);
    inputs.weight[i] = weights[i].const_data_ptr();
  }
  return inputs;
}

}  // namespace

bool fits_norm_rotary_kernel(const NormRotaryTensors& tensors) {
  const at::Tensor& q = tensors.x[0];
  const std::int64_t rotary_dim = tensors.cos.size(2);
  if (!has_cuda_kernels(q) || q.scalar_type() == at::kDouble) return false;
  if (q.numel() == 0 || tensors.x[1].numel() == 0 || rotary_dim == 0) return false;
  const std::int64_t width = kBytesOfPiece / q.element_size();
  for (const at::Tensor& x : tensors.x)
    if (x.numel() / x.size(3) > std::numeric_limits<std::int32_t>::max()) return false;
  return q.size(3) % width == 0 && rotary_dim % (2 * width) == 0 &&
         num_slots(q.size(3), rotary_dim, width) <= kMaxSlots;
}

QueriesAndKeys norm_rotary_forward_cuda(const NormRotaryTensors& tensors, const NormRotaryOptions& options) {
  const c10::DeviceGuard guard(tensors.x[0].device());
  const Tables tables(tensors, tensors.x[0].scalar_type());
  const QueriesAndKeys weights = fitting_weights(tensors);
  const QueriesAndKeys x = {fitting_heads(tensors.x[0]), fitting_heads(tensors.x[1])};
  NormRotaryForwardArgs args{.inputs = inputs_of(x, weights, tables, options)};
  join_batches(args.inputs, {&args.inputs.x[0], &args.inputs.x[1]});
  QueriesAndKeys out;
  for (std::size_t i = 0; i < 2; ++i) {
    out[i] = at::empty(x[i].sizes(), x[i].options());
    args.out[i] = out[i].mutable_data_ptr();
  }
  launch_norm_rotary_forward(args, current_cuda_stream(x[0].device()));
  return out;
}

NormRotaryBackward norm_rotary_backward_cuda(const QueriesAndKeys& grad_out, const NormRotaryTensors& tensors,
                                             const NormRotaryOptions& options, const NormRotaryWanted& wanted) {
  const c10::DeviceGuard guard(tensors.x[0].device());
  const Tables tables(tensors, tensors.x[0].scalar_type());
  const QueriesAndKeys weights = fitting_weights(tensors);
  const QueriesAndKeys x = {fitting_heads(tensors.x[0]), fitting_heads(tensors.x[1])};
  NormRotaryBackwardArgs args{.inputs = inputs_of(x, weights, tables, options)};
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
  join_batches(args.inputs, {&args.inputs.x[0], &args.inputs.x[1], &args.grad_out[0], &args.grad_out[1]});
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
