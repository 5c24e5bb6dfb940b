// Sequences of any length behind each other in one row, without padding: documents, or samples of a batch.
//
// Example
//   const PackedSequences packed{.cu_seqlens = at::tensor({0, 64, 192, 224}, at::kInt), .max_length = 128};
//   at::Tensor out = eager_attention({.query = q, .key = k, .value = v, .packed = packed}, {.causal = true});
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// Sequence n of N has the positions from cu_seqlens[n] to cu_seqlens[n + 1], and may have none. Nothing sees beyond its
// own sequence; causality and windows count within it.
struct PackedSequences {
  at::Tensor cu_seqlens;  // [N + 1] int32, ascending from 0 to the number of positions, on the device of the query
  std::int64_t max_length = 0;  // positions of the longest sequence, or more: on a GPU nobody reads cu_seqlens to know
};

}  // namespace d9d::kernels
