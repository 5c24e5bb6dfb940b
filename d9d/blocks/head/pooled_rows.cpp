#include "d9d/blocks/head/pooled_rows.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

struct Selection {
  at::Tensor positions;            // [n] int64, of the flattened mask
  std::optional<at::Tensor> fits;  // [n] bool: the mask selects as many positions as were announced; none: it does
};

// The positions where `selected` ([N] bool) is true, of which n are expected.
Selection counted_positions(const at::Tensor& selected, std::int64_t n) {
  if (selected.is_cpu()) {
    const auto found = selected.sum().item<std::int64_t>();
    D9D_CHECK(found == n, ConfigError, "[blocks::pooled_rows] expected a pooling mask that selects num_positions = ", n,
              " positions, got ", found, ". Count again, or leave num_positions out.");
  }
  const std::int64_t none = selected.size(0);
  // Asks for n + 1 to detect an excess.
  const at::Tensor numbers = at::nonzero_static(selected, n + 1, /*fill_value=*/none).squeeze(1);
  return {.positions = numbers.narrow(0, 0, n).clamp_max(none - 1),
          .fits = numbers.slice(0, 0, n).lt(none).logical_and(numbers.slice(0, n).eq(none))};
}

Selection selection_of(const at::Tensor& mask, const std::optional<std::int64_t>& num_positions) {
  const at::Tensor selected = mask.eq(1).reshape({-1});
  if (num_positions) return counted_positions(selected, *num_positions);
  return {.positions = selected.nonzero().squeeze(1), .fits = std::nullopt};
}

// `positions` of B * S ones, of which this rank has a part of `length` for each of the B: as those of its part.
PooledRows rows_of_part(const at::Tensor& hidden_states, const at::Tensor& positions, const PositionRanks& ranks) {
  const std::int64_t length = hidden_states.size(1), sequence = length * ranks.num_parts();
  const at::Tensor column = positions.remainder(sequence);
  at::Tensor index = column.remainder(length);  // of those of other ranks any of this rank's
  at::Tensor is_here = at::zeros_like(column, at::kBool);
  std::int64_t first = 0;
  for (const FlatRange& range : ranks.cut().ranges(sequence)) {
    const at::Tensor is_in_range = column.ge(range.begin).logical_and(column.lt(range.end));
    index = at::where(is_in_range, column - range.begin + first, index);
    is_here = is_here.logical_or(is_in_range);
    first += range.numel();
  }
  const at::Tensor here = positions.floor_divide(sequence) * length + index;
  return {.rows = hidden_states.flatten(0, 1).index_select(0, here), .is_here = is_here, .ranks = ranks};
}

}  // namespace

at::Tensor PooledRows::whole(const at::Tensor& outputs) const {
  return is_here ? sum_over_positions(at::where(is_here->unsqueeze(-1), outputs, 0), ranks) : outputs;
}

PooledRows pooled_rows(const at::Tensor& hidden_states, const PoolingShared& shared, const PositionRanks& ranks) {
  const std::vector<std::int64_t> sizes = {hidden_states.size(0), hidden_states.size(1) * ranks.num_parts()};
  if (!shared.pooling_mask) {
    if (ranks.num_parts() == 1) return {.rows = hidden_states};
    const at::Tensor all = at::arange(sizes[0] * sizes[1], hidden_states.options().dtype(at::kLong));
    PooledRows pooled = rows_of_part(hidden_states, all, ranks);
    pooled.rows = pooled.rows.unflatten(0, sizes);
    pooled.is_here = pooled.is_here->unflatten(0, sizes);
    return pooled;
  }
  D9D_CHECK(shared.pooling_mask->sizes() == at::IntArrayRef(sizes), ConfigError,
            "[blocks::pooled_rows] expected a pooling mask of the positions of all ", ranks.num_parts(),
            " ranks that share a sequence, ", at::IntArrayRef(sizes), ", got ", shared.pooling_mask->sizes(),
            ". Shard ids and positions over context-parallel ranks, but not the mask.");
  const Selection selection = selection_of(*shared.pooling_mask, shared.num_positions);
  PooledRows pooled = ranks.num_parts() == 1
                          ? PooledRows{.rows = hidden_states.flatten(0, 1).index_select(0, selection.positions)}
                          : rows_of_part(hidden_states, selection.positions, ranks);
  if (selection.fits) pooled.rows = at::where(selection.fits->unsqueeze(1), pooled.rows, std::nan(""));
  return pooled;
}

}  // namespace d9d
