#include <limits>
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/rounding.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/row_tensor.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_impl.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_kernel.h"

namespace d9d::kernels::detail {
namespace {

// The stride between rows of an aligned tensor, in elements, if it is the same for all rows and a multiple of 16 bytes;
// otherwise nullopt.
std::optional<std::int64_t> even_row_stride(const at::Tensor& tensor) {
  const std::optional<StridedRows> rows = strided_rows(tensor);
  if (!rows || rows->inner_rows * tensor.size(-1) != tensor.numel() || !is_aligned(tensor)) return std::nullopt;
  if (rows->inner_stride < tensor.size(-1) || rows->inner_stride % 8 != 0) return std::nullopt;
  return rows->inner_stride;
}

}  // namespace

bool fits_silu_mul_linear_kernel(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                                 const at::Tensor& a) {
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max() / 2;
  const auto is_bf16_here = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kBFloat16 && tensor.device() == gate.device();
  };
  if (gate.dim() < 2 || weight.dim() != 2 || up.sizes() != gate.sizes() || weight.size(1) != gate.size(-1))
    return false;
  if (!is_bf16_here(gate) || !is_bf16_here(up) || !is_bf16_here(weight) || !(has_cuda_kernels(gate) || gate.is_meta()))
    return false;
  if (a.defined() && !(is_bf16_here(a) && a.size(0) % 8 == 0 && a.is_contiguous() && is_aligned(a))) return false;
  return gate.numel() > 0 && weight.numel() > 0 && gate.numel() / gate.size(-1) <= kMostRows &&
         weight.size(0) % 8 == 0 && weight.size(1) % 8 == 0 && weight.is_contiguous() && is_aligned(weight) &&
         even_row_stride(gate) && even_row_stride(up);
}

bool pays_silu_mul_linear_kernel(std::int64_t num_rows, std::int64_t num_features) {
  constexpr std::int64_t kTile = 256, kTilesAtOnce = 132 / 2;
  constexpr double kLeastFilled = 0.85;
  const std::int64_t num_rounds = divide_up(divide_up(num_rows, kTile) * divide_up(num_features, kTile), kTilesAtOnce);
  return static_cast<double>(num_rows) * static_cast<double>(num_features) >=
         kLeastFilled * static_cast<double>(num_rounds * kTilesAtOnce * kTile * kTile);
}

SiluMulLinearBackward empty_silu_mul_linear_backward(const at::Tensor& gate, const at::Tensor& up, bool wants_product) {
  SiluMulLinearBackward result;
  std::tie(result.gate, result.up) = empty_column_slices(gate, up, /*num_column_dims=*/1);
  if (wants_product) result.product = at::empty({gate.numel() / gate.size(-1), gate.size(-1)}, gate.options());
  return result;
}

SiluMulLinearBackward silu_mul_linear_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate,
                                                    const at::Tensor& up, const at::Tensor& weight, bool wants_product,
                                                    const at::Tensor& grad_hidden, const at::Tensor& a) {
  SiluMulLinearBackward result = empty_silu_mul_linear_backward(gate, up, wants_product);
  write_silu_mul_linear_backward_cuda(result, grad_out, gate, up, weight, grad_hidden, a);
  return result;
}

void write_silu_mul_linear_backward_cuda(const SiluMulLinearBackward& result, const at::Tensor& grad_out,
                                         const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                                         const at::Tensor& grad_hidden, const at::Tensor& a) {
  if (gate.is_meta()) return;
  const c10::DeviceGuard guard(gate.device());
  const at::Tensor grad = aligned(grad_out);
  const at::Tensor tile_counter = at::empty({1}, gate.options().dtype(at::kInt));
  launch_silu_mul_linear_backward({.num_rows = static_cast<int>(grad.size(0)),
                                   .num_features = static_cast<int>(weight.size(1)),
                                   .num_outputs = static_cast<int>(weight.size(0)),
                                   .grad_out = grad.const_data_ptr(),
                                   .weight = weight.const_data_ptr(),
                                   .gate = gate.const_data_ptr(),
                                   .up = up.const_data_ptr(),
                                   .gate_row_stride = even_row_stride(gate).value(),
                                   .up_row_stride = even_row_stride(up).value(),
                                   .grad_gate = result.gate.mutable_data_ptr(),
                                   .grad_up = result.up.mutable_data_ptr(),
                                   .grad_row_stride = even_row_stride(result.gate).value(),
                                   .product = result.product.defined() ? result.product.mutable_data_ptr() : nullptr,
                                   .tile_counter = tile_counter.mutable_data_ptr<std::int32_t>(),
                                   .rank = a.defined() ? static_cast<int>(a.size(0)) : 0,
                                   .grad_hidden = a.defined() ? grad_hidden.const_data_ptr() : nullptr,
                                   .a = a.defined() ? a.const_data_ptr() : nullptr},
                                  current_cuda_stream(gate.device()));
}

}  // namespace d9d::kernels::detail
