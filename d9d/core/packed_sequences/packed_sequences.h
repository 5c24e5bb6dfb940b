// Sequences of any length (documents, or samples of a batch) concatenated in one row, or in rows of one length.
//
// Example
//   const PackedSequences packed{.cu_seqlens = at::tensor({0, 64, 192, 224}, at::kInt), .max_length = 128};
//   at::Tensor out = eager_attention({.query = q, .key = k, .value = v, .packed = packed}, {.causal = true});
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"

namespace d9d {

// Sequence n of N has the positions from cu_seqlens[n] to before cu_seqlens[n + 1], and may be empty. A query sees keys
// of its own sequence only; causality and windows apply within it.
struct PackedSequences {
  at::Tensor cu_seqlens;  // [N + 1] int32, ascending from 0 to the number of positions, on the device of the query
  std::int64_t max_length = 0;  // upper bound of the lengths; given, because reading cu_seqlens would wait for a GPU
  static constexpr auto fields() {
    return record<PackedSequences>(field("cu_seqlens", &PackedSequences::cu_seqlens),
                                   field("max_length", &PackedSequences::max_length));
  }
};

// The keys of packed sequences, if they are others than the positions of the queries: the queries of a sequence are its
// last positions, and a cache or a gathered row holds the keys and values of all of them. A row of keys has room for
// each sequence, which has at least as many keys as queries.
//
// Without `lengths` each sequence fills its room, and the rooms the row: such keys get gradients on every core. If
// attention is neither causal nor has a window, a sequence may then have fewer keys than queries, or none.
struct PackedKeys {
  at::Tensor cu_seqlens;        // [N + 1] int32: sequence n has room from cu_seqlens[n] to before cu_seqlens[n + 1]
  at::Tensor lengths;           // [N] int32: the number of keys at the beginning of its room; or undefined
  std::int64_t max_length = 0;  // upper bound of the lengths
};

}  // namespace d9d
