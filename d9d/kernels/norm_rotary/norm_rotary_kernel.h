// The CUDA kernels of norm_rotary: forward and backward each make one pass over queries and keys.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"
#include "d9d/kernels/rotary/heads_view.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Legend   B, S, D, Dr, T: see HeadsView.
struct NormRotaryInputs {
  Dtype dtype = Dtype::kBFloat16;         // not double
  Dtype weight_dtype = Dtype::kBFloat16;  // T or float
  Dtype table_dtype = Dtype::kBFloat16;   // T or float
  HeadsShape shape;
  bool is_interleaved = false;
  bool zero_centered = false;
  double eps = 0;
  const void* cos = nullptr;  // of table_dtype, contiguous
  const void* sin = nullptr;
  HeadsView x[2];
  const void* weight[2] = {};  // [D] of weight_dtype, contiguous
};

struct NormRotaryForwardArgs {
  NormRotaryInputs inputs;
  void* out[2] = {};  // [B, S, heads, D], contiguous
};

// The weight gradients are summed over heads into this many partial sums, for queries and keys together, which are then
// added: one for each multiprocessor of an H200. The number is the same on all GPUs, so that the order of additions
// does not depend on the device.
constexpr std::int64_t kNormRotaryPartials = 132;

struct NormRotaryBackwardArgs {
  NormRotaryInputs inputs;
  HeadsView grad_out[2];
  void* grad_x[2] = {};                 // [B * S, heads, D] with contiguous heads and channels; null: not wanted
  std::uint32_t grad_x_stride[2] = {};  // elements from a token to the next
  float* partials = nullptr;  // [kNormRotaryPartials, D]: scratch of the weights' gradients; null: none is wanted
  void* grad_weight[2] = {};  // [D] of weight_dtype; null: not wanted
};

// Both run on the current device and `stream` without synchronising; num_tokens > 0. Sizes and dtypes alone decide the
// order of all sums. They throw StateError if a kernel does not start, ConfigError in a build without CUDA.
extern "C" void d9d_launch_norm_rotary_forward(const NormRotaryForwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_norm_rotary_forward", decltype(d9d_launch_norm_rotary_forward)>
    launch_norm_rotary_forward;
extern "C" void d9d_launch_norm_rotary_backward(const NormRotaryBackwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_norm_rotary_backward", decltype(d9d_launch_norm_rotary_backward)>
    launch_norm_rotary_backward;

}  // namespace d9d::kernels::detail
