#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/common/cuda_kernels.h"
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

struct CombineShape {
  std::int64_t num_choices;
  std::int64_t num_features;
};

template <class Scalar, class Sum = at::opmath_type<Scalar>>
void combine_token(const Scalar* rows, const std::int64_t* row_of_choice, const Sum* weight_of_choice,
                   const CombineShape& shape, Sum* sum, Scalar* token) {
  std::fill_n(sum, shape.num_features, Sum{0});
  for (std::int64_t choice = 0; choice < shape.num_choices; ++choice) {
    if (row_of_choice[choice] < 0) continue;
    const Scalar* row = rows + row_of_choice[choice] * shape.num_features;
    const Sum weight = weight_of_choice ? weight_of_choice[choice] : Sum{1};
    for (std::int64_t i = 0; i < shape.num_features; ++i) sum[i] += weight * static_cast<Sum>(row[i]);
  }
  for (std::int64_t i = 0; i < shape.num_features; ++i) token[i] = static_cast<Scalar>(sum[i]);
}

template <class Scalar>
void combine(const at::Tensor& rows, const at::Tensor& slot_to_row, const at::Tensor& weights, at::Tensor& tokens) {
  using Sum = at::opmath_type<Scalar>;
  const CombineShape shape{.num_choices = slot_to_row.size(1), .num_features = rows.size(1)};
  const auto* row = rows.const_data_ptr<Scalar>();
  const auto* row_of_slot = slot_to_row.const_data_ptr<std::int64_t>();
  const Sum* weight_of_slot = weights.defined() ? weights.const_data_ptr<Sum>() : nullptr;
  auto* token = tokens.mutable_data_ptr<Scalar>();
  at::parallel_for(0, tokens.size(0), 64, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Sum> sum(static_cast<std::size_t>(shape.num_features));
    for (std::int64_t t = begin; t < end; ++t) {
      const auto first_slot = t * shape.num_choices;
      combine_token<Scalar>(row, row_of_slot + first_slot, weight_of_slot ? weight_of_slot + first_slot : nullptr,
                            shape, sum.data(), token + t * shape.num_features);
    }
  });
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

at::Tensor combine_rows_cpu(const at::Tensor& rows, const at::Tensor& slot_to_row, const at::Tensor& weights) {
  auto tokens = at::empty({slot_to_row.size(0), rows.size(1)}, rows.options());
  const auto sum_dtype = at::toOpMathType(rows.scalar_type());
  const auto dense_rows = rows.contiguous();
  const auto dense_slots = slot_to_row.contiguous();
  const auto dense_weights = weights.defined() ? weights.to(sum_dtype).contiguous() : weights;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "combine_rows_cpu",
                                  [&] { combine<scalar_t>(dense_rows, dense_slots, dense_weights, tokens); });
  return tokens;
}

}  // namespace d9d::kernels::detail
