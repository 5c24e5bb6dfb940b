// The gradients of gate and up through silu(gate) * up and a linear, in one kernel of Hopper's tensor cores: the
// gradient of what lies between never goes to memory.
//
// Legend   T rows, F features of gate and up, H of the linear's output; bf16, multiplied as it is, summed in fp32.
//          All aligned to 16 bytes, rows too; T, F, H >= 1, F and H multiples of 8.
#pragma once

#include <cstdint>

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
  std::int64_t grad_row_stride;  // of both
  std::int32_t* tile_counter;    // scratch: one number
};

// On the current device and `stream`, without waiting. Throws StateError when the kernel does not start, ConfigError in
// a build without CUDA.
void launch_silu_mul_linear_backward(const SiluMulLinearBackwardArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
