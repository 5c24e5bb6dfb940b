// The CUDA kernels of apply_rotary.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"
#include "d9d/kernels/rotary/heads_view.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Two tensors of any dtype and strides, with scalar loads, for tensors that launch_rotary_vectorized() does not take.
//
// Legend   B = batch, S = num_positions, D = head_dim, Dr = rotary_dim (even, <= D).
struct RotaryHeads {
  std::int64_t num_heads = 0;  // 0: there is no tensor
  const void* x = nullptr;     // [B, S, num_heads, D] with the strides below, and contiguous channels
  std::int64_t batch_stride = 0;
  std::int64_t position_stride = 0;
  std::int64_t head_stride = 0;
  void* out = nullptr;  // the same shape, contiguous
};

struct RotaryArgs {
  Dtype dtype = Dtype::kFloat32;
  Dtype table_dtype = Dtype::kFloat32;  // dtype, or kFloat32 for narrower heads
  std::int64_t num_tokens = 0;          // B * S
  std::int64_t num_positions = 0;
  std::int64_t num_table_rows = 0;  // B * S or S
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  bool is_interleaved = false;
  bool is_transposed = false;  // the backward
  const void* cos = nullptr;   // [num_table_rows, Dr] of table_dtype, contiguous
  const void* sin = nullptr;
  RotaryHeads first;
  RotaryHeads second;
};

// Runs on the current device and `stream` without synchronising. Throws StateError if the kernel does not start,
// ConfigError in a build without CUDA.
extern "C" void d9d_launch_rotary(const RotaryArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_rotary", decltype(d9d_launch_rotary)> launch_rotary;

// Queries and keys that HeadsView describes, as one pass over GPU memory.
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
extern "C" void d9d_launch_rotary_vectorized(const RotaryVectorizedArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_rotary_vectorized", decltype(d9d_launch_rotary_vectorized)>
    launch_rotary_vectorized;

}  // namespace d9d::kernels::detail
