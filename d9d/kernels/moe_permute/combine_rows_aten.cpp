#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/moe_permute/combine_rows.h"
#include "d9d/kernels/moe_permute/moe_permute_impl.h"

namespace d9d::kernels::detail {
namespace {

// values: [N, ...]. Returns [T, k, ...], zero for a slot without a row, even if values are NaN or infinite.
at::Tensor gather_slots(const at::Tensor& values, const at::Tensor& slot_to_row) {
  auto shape = values.sizes().vec();
  shape[0] = slot_to_row.size(1);
  shape.insert(shape.begin(), slot_to_row.size(0));
  if (values.size(0) == 0) return at::zeros(shape, values.options());
  auto mask = slot_to_row.lt(0);
  while (mask.dim() < static_cast<std::int64_t>(shape.size())) mask = mask.unsqueeze(-1);
  return values.index_select(0, slot_to_row.clamp_min(0).flatten()).view(shape).masked_fill(mask, 0);
}

}  // namespace

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& slot_to_row, const at::Tensor& weights) {
  if (has_cuda_kernels(rows) && rows.size(1) > 0) return combine_rows_cuda(rows, weights, {}, slot_to_row).first;
  if (rows.is_meta()) return at::empty({slot_to_row.size(0), rows.size(1)}, rows.options());
  return rows.is_cpu() ? combine_rows_cpu(rows, slot_to_row, weights) : combine_rows_aten(rows, slot_to_row, weights);
}

at::Tensor combine_rows_aten(const at::Tensor& rows, const at::Tensor& slot_to_row, const at::Tensor& weights) {
  const auto sum_dtype = at::toOpMathType(rows.scalar_type());
  auto of_slots = gather_slots(rows, slot_to_row).to(sum_dtype);
  if (weights.defined()) of_slots = of_slots * weights.to(sum_dtype).unsqueeze(-1);
  return of_slots.sum(1).to(rows.scalar_type());
}

at::Tensor spread_to_slots(const at::Tensor& values, const at::Tensor& slot_to_row) {
  return gather_slots(values, slot_to_row);
}

}  // namespace d9d::kernels::detail
