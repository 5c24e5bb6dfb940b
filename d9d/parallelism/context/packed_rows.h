// The boundaries of packed sequences in ranges of positions of each row, such as those of a context-parallel rank.
//
// Example
//   const PackedRows rows({.cu_seqlens = at::tensor({0, 3, 8}, at::kInt), .max_length = 5}, /*length=*/8);
//   rows.in({{.begin = 2, .end = 4}}).cu_seqlens;                           // {0, 1, 2}
//   rows.in({{.begin = 0, .end = 2}, {.begin = 6, .end = 8}}).cu_seqlens;   // {0, 2, 4}
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"
#include "d9d/core/packed_sequences/packed_sequences.h"

namespace d9d {

// Does not synchronise with the device.
class PackedRows {
 public:
  // packed: sequences of rows of `length` positions, none of which is in two rows.
  PackedRows(const PackedSequences& packed, std::int64_t length);

  // As many sequences, of the rows that are left if only the positions in `ranges`, at least one and ascending, of each
  // stay. Sequences without any are empty.
  [[nodiscard]] PackedSequences in(const std::vector<FlatRange>& ranges) const;

 private:
  at::Tensor row_;       // [N + 1] int32: of each boundary
  at::Tensor position_;  // [N + 1] int32: in its row
  std::int64_t max_length_;
};

}  // namespace d9d
