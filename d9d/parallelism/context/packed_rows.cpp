#include "d9d/parallelism/context/packed_rows.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace d9d {

PackedRows::PackedRows(const PackedSequences& packed, std::int64_t length)
    : row_(packed.cu_seqlens.div(length, "floor")),
      position_(packed.cu_seqlens.remainder(length)),
      max_length_(packed.max_length) {}

PackedSequences PackedRows::in(const std::vector<FlatRange>& ranges) const {
  std::int64_t num_positions = 0, sum_of_begins = 0;
  at::Tensor clamped;  // the number of positions before each boundary in its row, plus sum_of_begins
  for (const FlatRange& range : ranges) {
    num_positions += range.numel();
    sum_of_begins += range.begin;
    const at::Tensor here = position_.clamp(range.begin, range.end);
    clamped = clamped.defined() ? clamped.add_(here) : here;
  }
  if (sum_of_begins > 0) clamped.sub_(sum_of_begins);
  return {.cu_seqlens = clamped.add_(row_, /*alpha=*/num_positions),
          .max_length = std::min(max_length_, num_positions)};
}

}  // namespace d9d
