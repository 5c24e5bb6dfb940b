// apply_rotary for queries and keys that HeadsView describes, as one pass over GPU memory.
#pragma once

#include "d9d/base/dtype.h"
#include "d9d/kernels/rotary/heads_view.h"

struct CUstream_st;

namespace d9d::kernels::detail {

struct RotaryVectorizedArgs {
  Dtype dtype = Dtype::kBFloat16;        // not double
  Dtype table_dtype = Dtype::kBFloat16;  // dtype or float
  HeadsShape shape;
  bool is_interleaved = false;
  bool is_transposed = false;  // the backward
  const void* cos = nullptr;   // of table_dtype, contiguous
  const void* sin = nullptr;
  HeadsView x[2];
  void* out[2] = {};  // the same shapes, contiguous
};

// Runs on the current device and `stream` without synchronising; num_tokens > 0. Throws StateError if the kernel does
// not start, ConfigError in a build without CUDA.
void launch_rotary_vectorized(const RotaryVectorizedArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
