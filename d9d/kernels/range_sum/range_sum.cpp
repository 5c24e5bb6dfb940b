#include "d9d/kernels/range_sum/range_sum.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/strided_rows.h"
#include "d9d/kernels/range_sum/range_sum_kernel.h"

namespace d9d::kernels {
namespace {

using detail::RangeSumArgs;

constexpr std::int64_t kPositions = 1;  // dim of [B, S, ...]

bool has_sizes_of(const at::Tensor& target, const PositionRange& range) {
  const at::Tensor& values = range.values;
  if (values.dim() != target.dim() || values.device() != target.device()) return false;
  for (std::int64_t dim = 0; dim < target.dim(); ++dim) {
    if (dim != kPositions && values.size(dim) != target.size(dim)) return false;
  }
  return range.first_position >= 0 && range.first_position <= target.size(kPositions) - values.size(kPositions);
}

std::int64_t num_columns_of(const at::Tensor& x) { return c10::multiply_integers(x.sizes().slice(kPositions + 1)); }

RangeSumArgs::Rows rows_of(const at::Tensor& x, void* data, std::int64_t first_position) {
  return {.data = data,
          .batch_stride = x.stride(0),
          .position_stride = x.stride(kPositions),
          .first_position = first_position,
          .num_positions = x.size(kPositions)};
}

bool has_kernel(const at::Tensor& target, const std::vector<PositionRange>& ranges) {
  const bool is_half = target.scalar_type() == at::kBFloat16 || target.scalar_type() == at::kHalf;
  if (!is_half || !detail::has_cuda_kernels(target) || std::ssize(ranges) > RangeSumArgs::kMaxRanges) return false;
  const std::int64_t num_columns = num_columns_of(target);
  const bool is_expanded = target.stride(0) == 0 || target.stride(kPositions) == 0;
  if (target.numel() / 8 >= RangeSumArgs::kMaxVectors || is_expanded) return false;
  const auto fits = [&](const at::Tensor& x) {
    const std::int64_t strides = x.stride(0) | x.stride(kPositions) | num_columns;
    return x.scalar_type() == target.scalar_type() && detail::has_dense_columns(x, x.dim() - kPositions - 1) &&
           strides % 8 == 0 && detail::is_aligned(x.const_data_ptr());
  };
  return fits(target) && std::ranges::all_of(ranges, [&](const PositionRange& each) { return fits(each.values); });
}

void sum_by_kernel(const at::Tensor& target, const std::vector<PositionRange>& ranges) {
  const c10::DeviceGuard guard(target.device());
  RangeSumArgs args{.dtype = detail::dtype_of(target),
                    .batch = target.size(0),
                    .num_columns = num_columns_of(target),
                    .target = rows_of(target, target.mutable_data_ptr(), 0),
                    .num_ranges = static_cast<int>(ranges.size())};
  std::ranges::transform(ranges, args.ranges.begin(), [](const PositionRange& each) {
    return rows_of(each.values, const_cast<void*>(each.values.const_data_ptr()), each.first_position);
  });
  detail::launch_range_sum(args, current_cuda_stream(target.device()));
  target.unsafeGetTensorImpl()->bump_version();
}

// Sums positions that the same ranges have.
void sum_all(const at::Tensor& target, const std::vector<at::Tensor>& summands) {
  if (summands.empty() || (summands.size() == 1 && summands.front().is_same(target))) return;
  at::Tensor sum = summands.front();
  if (summands.size() == 2 && sum.is_same(target)) return (void)target.add_(summands[1]);  // rounds once
  for (std::size_t i = 1; i < summands.size(); ++i) {
    sum = sum.to(at::promote_types(at::promote_types(sum.scalar_type(), summands[i].scalar_type()), at::kFloat));
    sum = i == 1 ? sum + summands[i] : sum.add_(summands[i]);
  }
  target.copy_(sum);
}

}  // namespace

void sum_ranges(const at::Tensor& target, const std::vector<PositionRange>& ranges) {
  D9D_CHECK(target.dim() > kPositions &&
                std::ranges::all_of(ranges, [&](const PositionRange& each) { return has_sizes_of(target, each); }),
            ConfigError, "[kernels::sum_ranges] expected ranges of the positions of ", target.sizes(), " on ",
            target.device(), ", got others. Pass tensors with its sizes but for dim 1.");
  const at::NoGradGuard no_grad;
  if (target.numel() == 0 || target.is_meta()) return;
  if (has_kernel(target, ranges)) return sum_by_kernel(target, ranges);
  std::vector<std::int64_t> bounds;
  for (const PositionRange& each : ranges) {
    bounds.insert(bounds.end(), {each.first_position, each.first_position + each.values.size(kPositions)});
  }
  std::ranges::sort(bounds);
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    const std::int64_t first = bounds[i - 1], count = bounds[i] - first;
    if (count == 0) continue;
    const at::Tensor here = target.narrow(kPositions, first, count);
    std::vector<at::Tensor> summands;
    for (const PositionRange& each : ranges) {
      const std::int64_t begin = first - each.first_position;
      if (begin < 0 || begin + count > each.values.size(kPositions)) continue;
      summands.push_back(each.values.is_same(target) ? here : each.values.narrow(kPositions, begin, count));
    }
    sum_all(here, summands);
  }
}

}  // namespace d9d::kernels
