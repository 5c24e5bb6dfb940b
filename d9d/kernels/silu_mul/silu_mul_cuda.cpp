#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/row_tensor.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"
#include "d9d/kernels/silu_mul/silu_mul_kernel.h"

namespace d9d::kernels::detail {
namespace {

// The rows as which kernels process tensors of one shape. If all tensors are contiguous, they count as a single row.
class Rows {
 public:
  Rows(const at::Tensor& like, bool are_contiguous)
      : num_columns(are_contiguous ? like.numel() : like.size(-1)),
        num_rows(like.numel() / num_columns),
        are_contiguous_(are_contiguous) {}

  [[nodiscard]] RowTensor operator()(const at::Tensor& tensor) const {
    if (are_contiguous_) return {tensor, StridedRows::contiguous(1, num_columns)};
    return row_tensor(tensor);
  }

  const std::int64_t num_columns;
  const std::int64_t num_rows;

 private:
  bool are_contiguous_;
};

// The inputs of a launch. Holds the tensors that `args` points to until the kernel is launched.
struct Inputs {
  Inputs(const Rows& rows, const at::Tensor& gate, const at::Tensor& up)
      : gate_(rows(gate)),
        up_(rows(up)),
        args{.dtype = dtype_of(gate),
             .num_rows = rows.num_rows,
             .num_columns = rows.num_columns,
             .gate = gate_.tensor.const_data_ptr(),
             .gate_rows = gate_.rows,
             .up = up_.tensor.const_data_ptr(),
             .up_rows = up_.rows} {}

 private:
  const RowTensor gate_;
  const RowTensor up_;

 public:
  const SiluMulInputs args;
};

}  // namespace

at::Tensor silu_mul_forward_cuda(const at::Tensor& gate, const at::Tensor& up) {
  const c10::DeviceGuard guard(gate.device());
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  if (out.numel() == 0) return out;
  const Rows rows(gate, gate.is_contiguous() && up.is_contiguous());
  const Inputs inputs(rows, gate, up);
  launch_silu_mul_forward({.inputs = inputs.args, .out = out.mutable_data_ptr()}, current_cuda_stream(gate.device()));
  return out;
}

SiluMulBackward silu_mul_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate, const at::Tensor& up,
                                       SiluMulWanted wanted) {
  const c10::DeviceGuard guard(gate.device());
  SiluMulBackward result;
  if (wanted.gate && wanted.up) {
    std::tie(result.gate, result.up) = empty_column_slices(gate, up, /*num_column_dims=*/1);
  } else {
    if (wanted.gate) result.gate = at::empty(gate.sizes(), gate.options());
    if (wanted.up) result.up = at::empty(up.sizes(), up.options());
  }
  const at::Tensor& any_result = wanted.gate ? result.gate : result.up;
  if (gate.numel() == 0 || !any_result.defined()) return result;
  const Rows rows(gate, grad_out.is_contiguous() && gate.is_contiguous() && up.is_contiguous());
  const Inputs inputs(rows, gate, up);
  const RowTensor grad_rows = rows(grad_out);
  launch_silu_mul_backward({.inputs = inputs.args,
                            .grad_out = grad_rows.tensor.const_data_ptr(),
                            .grad_out_rows = grad_rows.rows,
                            .grad_gate = wanted.gate ? result.gate.mutable_data_ptr() : nullptr,
                            .grad_up = wanted.up ? result.up.mutable_data_ptr() : nullptr,
                            .grad_rows = rows(any_result).rows},
                           current_cuda_stream(gate.device()));
  return result;
}

}  // namespace d9d::kernels::detail
