// The gradients of gate and up through silu(gate) * up and a linear, in one kernel on Hopper's tensor cores. The
// gradient of silu(gate) * up is never written to memory. silu(gate) * up itself is, where the weight's gradient needs
// it: it costs less to compute again here than to keep from forward to backward.
//
// Legend   T rows, F features of gate and up, H of the linear's output; bf16 factors, sums in fp32. All tensors and
//          their rows are aligned to 16 bytes; T, F, H >= 1, F and H are multiples of 8.
#pragma once

#include <cstdint>

#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

struct SiluMulLinearBackwardArgs {
  int num_rows;  // T
  int num_features;
  int num_outputs;               // H
  const void* grad_out;          // [T, H], contiguous
  const void* weight;            // [H, F], contiguous
  const void* gate;              // [T, F]
  const void* up;                // [T, F]
  std::int64_t gate_row_stride;  // in elements
  std::int64_t up_row_stride;
  void* grad_gate;               // [T, F]
  void* grad_up;                 // [T, F]
  std::int64_t grad_row_stride;  // of both gradients
  void* product;                 // [T, F], contiguous: silu(gate) * up; null: not written
  std::int32_t* tile_counter;    // scratch: one number
  int rank = 0;                  // R of a term of low rank (../linear/linear.h), a multiple of 8; 0: none
  const void* grad_hidden;       // [T, R], contiguous: the gradient of (silu(gate) * up) A^T
  const void* a;                 // [R, F], contiguous, aligned to 16 bytes
};

// Runs on the current device and `stream` without synchronising. Throws StateError if the kernel does not start,
// ConfigError in a build without CUDA.
extern "C" void d9d_launch_silu_mul_linear_backward(const SiluMulLinearBackwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_silu_mul_linear_backward", decltype(d9d_launch_silu_mul_linear_backward)>
    launch_silu_mul_linear_backward;

}  // namespace d9d::kernels::detail
