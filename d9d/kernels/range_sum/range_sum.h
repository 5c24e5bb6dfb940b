// Sums of tensors that have ranges of another tensor's positions: gradients of the blocks of ring attention, or what
// ranks contribute to the keys of one of them.
//
// Example
//   sum_ranges(total, {{.values = total}, {.values = theirs, .first_position = 4}});  // adds theirs from position 4 on
//   sum_ranges(slot, {{.values = v}});                                                // copies
//
// Legend   B batch, S positions
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

struct PositionRange {
  at::Tensor values;  // [B, n, ...]
  std::int64_t first_position = 0;
};

// target [B, S, ...] at a position = the sum of the ranges that have it, in their order, computed in the widest of
// their dtypes and float, and rounded once. Positions that no range has keep their values. A range may be `target`
// itself, which no other overlaps. All have its device and its sizes but for n, and may have strides and other floating
// dtypes; no two elements of target are at one address. No graph is recorded. Throws ConfigError for other sizes, and
// for ranges beyond S.
void sum_ranges(const at::Tensor& target, const std::vector<PositionRange>& ranges);

}  // namespace d9d::kernels
