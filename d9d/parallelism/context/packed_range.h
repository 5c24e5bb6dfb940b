// The boundaries of packed sequences in a range of positions of each row, such as a rank of context parallelism has it.
//
// Example
//   const PackedSequences packed{.cu_seqlens = at::tensor({0, 3, 8}, at::kInt), .max_length = 5};
//   packed_in_range(packed, {.begin = 2, .end = 4}, /*length=*/8).cu_seqlens;                // {0, 1, 2}
#pragma once

#include <cstdint>

#include "d9d/core/dtensor/layout.h"
#include "d9d/core/packed_sequences/packed_sequences.h"

namespace d9d {

// Local. packed: sequences of rows of `length` positions, none of which is in two rows. Returns as many sequences of
// the rows that are left if only the positions in `range` of each stay; sequences without any are empty. Does not
// synchronise with the device.
[[nodiscard]] PackedSequences packed_in_range(const PackedSequences& packed, const FlatRange& range,
                                              std::int64_t length);

}  // namespace d9d
