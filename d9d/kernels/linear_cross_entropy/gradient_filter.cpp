#include "d9d/kernels/linear_cross_entropy/gradient_filter.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/rounding.h"

namespace d9d::kernels::detail {
namespace {

// values [T, C] as [T, ceil(C / size), size], filled up with zeros.
at::Tensor in_groups(const at::Tensor& values, std::int64_t size) {
  const std::int64_t num_groups = divide_up(values.size(1), size);
  const std::int64_t missing = num_groups * size - values.size(1);
  const at::Tensor whole = missing == 0 ? values : at::constant_pad_nd(values, {0, missing});
  return whole.reshape({values.size(0), num_groups, size});
}

}  // namespace

at::Tensor kept_tiles_aten(const at::Tensor& grad_logits, const at::Tensor& threshold) {
  const at::Tensor groups = in_groups(grad_logits, kTileColumns);
  const at::Tensor greatest = at::maximum(groups.amax(-1), groups.amin(-1).neg());  // [T, column tiles]
  const at::Tensor is_small = greatest.lt(threshold.unsqueeze(1)).logical_or_(greatest.le(0));
  const at::Tensor is_large = is_small.logical_not().to(at::kFloat);
  return in_groups(is_large.t(), kTileRows).amax(-1).t().gt(0);
}

at::Tensor cleared_tiles_aten(const at::Tensor& grad_logits, const at::Tensor& kept_tiles) {
  const std::int64_t num_rows = kept_tiles.size(0), num_columns = kept_tiles.size(1);
  const at::Tensor elements = kept_tiles.view({num_rows, 1, num_columns, 1})
                                  .expand({num_rows, kTileRows, num_columns, kTileColumns})
                                  .reshape({num_rows * kTileRows, num_columns * kTileColumns});
  const at::Tensor is_kept = elements.narrow(0, 0, grad_logits.size(0)).narrow(1, 0, grad_logits.size(1));
  return grad_logits.masked_fill(is_kept.logical_not(), 0);
}

std::vector<LogitPart> kept_parts(const at::Tensor& kept_tiles, at::IntArrayRef sizes) {
  std::vector<LogitPart> parts;
  const auto tiles = kept_tiles.accessor<bool, 2>();
  for (std::int64_t row = 0; row < tiles.size(0); ++row) {
    const std::int64_t first_row = row * kTileRows;
    for (std::int64_t begin = 0; begin < tiles.size(1); ++begin) {
      if (!tiles[row][begin]) continue;
      std::int64_t end = begin;
      while (end < tiles.size(1) && tiles[row][end]) ++end;
      parts.push_back({.first_row = first_row,
                       .num_rows = std::min(kTileRows, sizes[0] - first_row),
                       .first_column = begin * kTileColumns,
                       .num_columns = std::min(end * kTileColumns, sizes[1]) - begin * kTileColumns});
      begin = end;
    }
  }
  return parts;
}

}  // namespace d9d::kernels::detail
