#include <algorithm>
#include <array>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/rotary/head_tensors.h"
#include "d9d/kernels/rotary/rotary_impl.h"
#include "d9d/kernels/rotary/rotary_kernel.h"

namespace d9d::kernels::detail {
namespace {

// The kernel reads tables of one type: that of the heads or that of the accumulator.
at::ScalarType table_dtype(const at::Tensor& cos, const at::Tensor& sin, at::ScalarType heads_dtype) {
  const bool are_of_heads = cos.scalar_type() == heads_dtype && sin.scalar_type() == heads_dtype;
  return are_of_heads ? heads_dtype : at::toOpMathType(heads_dtype);
}

// A tensor, and the result of its rotation.
struct Rotation {
  explicit Rotation(const at::Tensor& strided) {
    if (!strided.defined()) return;
    x = strided.stride(3) == 1 ? strided : strided.contiguous();
    out = at::empty(x.sizes(), x.options());
  }

  [[nodiscard]] bool is_empty() const { return !x.defined() || x.numel() == 0; }

  [[nodiscard]] RotaryHeads heads() const {
    if (is_empty()) return {};
    return {.num_heads = x.size(2),
            .x = x.const_data_ptr(),
            .batch_stride = x.stride(0),
            .position_stride = x.stride(1),
            .head_stride = x.stride(2),
            .out = out.mutable_data_ptr()};
  }

  at::Tensor x;
  at::Tensor out;
};

struct CosSin {
  at::Tensor cos;
  at::Tensor sin;
};

void rotary_vectorized(const at::Tensor& like, const std::array<const Rotation*, 2>& rotations, const CosSin& tables,
                       RotaryStyle style, RotaryPass pass) {
  RotaryVectorizedArgs args{.dtype = dtype_of(like),
                            .table_dtype = dtype_of(tables.cos),
                            .shape = {.num_tokens = like.size(0) * like.size(1),
                                      .num_positions = like.size(1),
                                      .num_table_rows = tables.cos.size(0) * tables.cos.size(1),
                                      .head_dim = static_cast<int>(like.size(3)),
                                      .rotary_dim = static_cast<int>(tables.cos.size(2))},
                            .is_interleaved = style == RotaryStyle::kInterleaved,
                            .is_transposed = pass == RotaryPass::kBackward,
                            .cos = tables.cos.const_data_ptr(),
                            .sin = tables.sin.const_data_ptr()};
  std::array<at::Tensor, 2> x;
  for (std::size_t i = 0; i < 2; ++i) {
    if (rotations[i]->is_empty()) continue;
    x[i] = fitting_heads(rotations[i]->x);
    args.shape.num_heads[i] = static_cast<int>(x[i].size(2));
    args.x[i] = view_of(x[i]);
    args.out[i] = rotations[i]->out.mutable_data_ptr();
  }
  join_batches(args.shape, {&args.x[0], &args.x[1]});
  launch_rotary_vectorized(args, current_cuda_stream(like.device()));
}

void rotary_any(const at::Tensor& like, const std::array<const Rotation*, 2>& rotations, const CosSin& tables,
                RotaryStyle style, RotaryPass pass) {
  launch_rotary({.dtype = dtype_of(like),
                 .table_dtype = dtype_of(tables.cos),
                 .num_tokens = like.size(0) * like.size(1),
                 .num_positions = like.size(1),
                 .num_table_rows = tables.cos.size(0) * tables.cos.size(1),
                 .head_dim = like.size(3),
                 .rotary_dim = tables.cos.size(2),
                 .is_interleaved = style == RotaryStyle::kInterleaved,
                 .is_transposed = pass == RotaryPass::kBackward,
                 .cos = tables.cos.const_data_ptr(),
                 .sin = tables.sin.const_data_ptr(),
                 .first = rotations[0]->heads(),
                 .second = rotations[1]->heads()},
                current_cuda_stream(like.device()));
}

}  // namespace

RotatedHeads rotate_cuda(const at::Tensor& first, const at::Tensor& second, const at::Tensor& cos,
                         const at::Tensor& sin, RotaryStyle style, RotaryPass pass) {
  const at::Tensor& like = first.defined() ? first : second;
  const c10::DeviceGuard guard(like.device());
  const Rotation first_rotation(first);
  const Rotation second_rotation(second);
  if (!first_rotation.is_empty() || !second_rotation.is_empty()) {
    const at::ScalarType dtype = table_dtype(cos, sin, like.scalar_type());
    const CosSin tables{.cos = fitting_numbers(cos, dtype), .sin = fitting_numbers(sin, dtype)};
    const bool are_few = std::max(first.defined() ? first.numel() : 0, second.defined() ? second.numel() : 0) /
                             std::max<std::int64_t>(like.size(3), 1) <=
                         std::numeric_limits<std::int32_t>::max();
    const auto rotate =
        are_few && has_heads_kernel(like.scalar_type(), like.size(3), cos.size(2)) ? rotary_vectorized : rotary_any;
    rotate(like, {&first_rotation, &second_rotation}, tables, style, pass);
  }
  return {.first = first_rotation.out, .second = second_rotation.out};
}

}  // namespace d9d::kernels::detail
