// norm_rotary of queries and keys as one pass over GPU memory, in each direction.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Legend   B = batch, S = num_positions, D = head_dim, Dr = rotary_dim (even, <= D), T = dtype, W = elements of T in 16
//          bytes. Addresses and strides are aligned to 16 bytes; D is a multiple of W, Dr of 2W, and a warp has a
//          thread for each slot (rotary/slots.h) of a head.
struct HeadsView {  // [B, S, heads, D] of T, whose channels lie side by side
  const void* data = nullptr;
  std::int64_t batch_bytes = 0;  // from one to the next
  std::uint32_t position_bytes = 0;
  std::uint32_t head_bytes = 0;
};

struct NormRotaryInputs {
  Dtype dtype = Dtype::kBFloat16;         // not double
  Dtype weight_dtype = Dtype::kBFloat16;  // T or float
  Dtype table_dtype = Dtype::kBFloat16;   // T or float
  std::int64_t num_tokens = 0;            // B * S
  std::int64_t num_positions = 0;
  std::int64_t num_table_rows = 0;  // B * S or S
  int head_dim = 0;
  int rotary_dim = 0;
  bool is_interleaved = false;
  bool zero_centered = false;
  double eps = 0;
  const void* cos = nullptr;  // [num_table_rows, Dr] of table_dtype, contiguous
  const void* sin = nullptr;
  int num_heads[2] = {};  // of queries and of keys; 0: nothing to do
  HeadsView x[2];
  const void* weight[2] = {};  // [D] of weight_dtype, contiguous
};

struct NormRotaryForwardArgs {
  NormRotaryInputs inputs;
  void* out[2] = {};  // [B, S, heads, D], contiguous
};

// Rows of weight gradients are added into this many sums, for queries and keys together, which are then added: as many
// as an H200 has multiprocessors, and the same on all GPUs, so that the order of additions does not depend on the
// device.
constexpr std::int64_t kNormRotaryPartials = 132;

struct NormRotaryBackwardArgs {
  NormRotaryInputs inputs;
  HeadsView grad_out[2];
  void* grad_x[2] = {};  // [B * S, heads, D], a token at grad_x_stride, its heads side by side; null: not wanted
  std::uint32_t grad_x_stride[2] = {};
  float* partials = nullptr;  // [kNormRotaryPartials, D]: scratch of the weights' gradients; null: none is wanted
  void* grad_weight[2] = {};  // [D] of weight_dtype; null: not wanted
};

// On the current device and `stream`, without waiting; num_tokens > 0. The order of all sums is decided by sizes and
// dtypes. Throw StateError when a kernel does not start, ConfigError in a build without CUDA.
void launch_norm_rotary_forward(const NormRotaryForwardArgs& args, CUstream_st* stream);
void launch_norm_rotary_backward(const NormRotaryBackwardArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
