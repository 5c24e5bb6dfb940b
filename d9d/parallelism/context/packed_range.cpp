#include "d9d/parallelism/context/packed_range.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace d9d {

PackedSequences packed_in_range(const PackedSequences& packed, const FlatRange& range, std::int64_t length) {
  const at::Tensor row = packed.cu_seqlens.div(length, "floor");
  const at::Tensor position = packed.cu_seqlens.remainder(length);  // in its row
  const at::Tensor in_range = (position - range.begin).clamp(0, range.numel());
  return {.cu_seqlens = at::add(in_range, row, /*alpha=*/range.numel()),
          .max_length = std::min(packed.max_length, range.numel())};
}

}  // namespace d9d
