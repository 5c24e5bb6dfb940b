// The boundaries of packed sequences in ranges of positions of each row, such as those of a context-parallel rank.
//
// Example
//   const PackedRows rows({.cu_seqlens = at::tensor({0, 3, 8}, at::kInt), .max_length = 5}, /*length=*/8);
//   rows.in({{.begin = 2, .end = 4}}).cu_seqlens;                           // {0, 1, 2}
//   rows.in({{.begin = 0, .end = 2}, {.begin = 6, .end = 8}}).cu_seqlens;   // {0, 2, 4}
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"
#include "d9d/core/packed_sequences/packed_sequences.h"

namespace d9d {

// Does not synchronise with the device. Threads may share it.
class PackedRows {
 public:
  // packed: sequences of rows of `length` positions, none of which is in two rows.
  PackedRows(const PackedSequences& packed, std::int64_t length);

  // As many sequences, of the rows that are left if only the positions in `ranges`, at least one and ascending, of each
  // stay. Sequences without any are empty. Computed once for the same ranges: each layer asks for them.
  [[nodiscard]] PackedSequences in(const std::vector<FlatRange>& ranges) const;

 private:
  [[nodiscard]] PackedSequences computed(const std::vector<FlatRange>& ranges) const;

  at::Tensor row_;       // [N + 1] int32: of each boundary
  at::Tensor position_;  // [N + 1] int32: in its row
  std::int64_t max_length_;
  mutable std::mutex mutex_;  // guards the next member
  mutable std::vector<std::pair<std::vector<FlatRange>, PackedSequences>> computed_;
};

// Makes PackedRows once for the layers of a batch. Threads may share it.
class LastPackedRows {
 public:
  // The same object if the arguments are those of the last call, and no operation has written the boundaries since, by
  // their version.
  [[nodiscard]] std::shared_ptr<const PackedRows> of(const PackedSequences& packed, std::int64_t length);

 private:
  std::mutex mutex_;  // guards the members
  PackedSequences packed_;
  std::int64_t length_ = 0;
  std::uint32_t version_ = 0;
  std::shared_ptr<const PackedRows> rows_;
};

}  // namespace d9d
