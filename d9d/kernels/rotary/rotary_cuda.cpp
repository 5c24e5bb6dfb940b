#include "d9d/kernels/rotary/rotary_cuda.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/device/cuda_kernels.h"
#include "d9d/kernels/rotary/rotary_kernel.h"

namespace d9d::kernels::detail {
namespace {

// The kernel reads tables of one type: that of the heads or that of the accumulator.
at::ScalarType table_dtype(const at::Tensor& cos, const at::Tensor& sin, at::ScalarType heads_dtype) {
  const bool are_of_heads = cos.scalar_type() == heads_dtype && sin.scalar_type() == heads_dtype;
  return are_of_heads ? heads_dtype : at::toOpMathType(heads_dtype);
}

// A tensor, and where it is turned to.
struct Turn {
  explicit Turn(const at::Tensor& strided) {
    if (!strided.defined()) return;
    x = strided.stride(3) == 1 ? strided : strided.contiguous();
    out = at::empty(x.sizes(), x.options());
  }

  [[nodiscard]] RotaryHeads heads() const {
    if (!x.defined() || x.numel() == 0) return {};
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

}  // namespace

RotatedHeads rotate_cuda(const at::Tensor& first, const at::Tensor& second, const at::Tensor& cos,
                         const at::Tensor& sin, RotaryStyle style, RotaryPass pass) {
  const at::Tensor& like = first.defined() ? first : second;
  const c10::DeviceGuard guard(like.device());
  const Turn first_turn(first);
  const Turn second_turn(second);
  const RotaryHeads first_heads = first_turn.heads();
  const RotaryHeads second_heads = second_turn.heads();
  if (first_heads.num_heads + second_heads.num_heads > 0) {
    const at::ScalarType dtype = table_dtype(cos, sin, like.scalar_type());
    const at::Tensor cos_rows = cos.to(dtype).contiguous();
    const at::Tensor sin_rows = sin.to(dtype).contiguous();
    launch_rotary({.dtype = dtype_of(like),
                   .table_dtype = dtype_of(cos_rows),
                   .num_tokens = like.size(0) * like.size(1),
                   .num_positions = like.size(1),
                   .num_table_rows = cos.size(0) * cos.size(1),
                   .head_dim = like.size(3),
                   .rotary_dim = cos.size(2),
                   .is_interleaved = style == RotaryStyle::kInterleaved,
                   .is_transposed = pass == RotaryPass::kBackward,
                   .cos = cos_rows.const_data_ptr(),
                   .sin = sin_rows.const_data_ptr(),
                   .first = first_heads,
                   .second = second_heads},
                  current_cuda_stream(like.device()));
  }
  return {.first = first_turn.out, .second = second_turn.out};
}

}  // namespace d9d::kernels::detail
