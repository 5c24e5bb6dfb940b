// The CUDA kernels of silu_mul and weighted_silu_mul: one pass over memory each.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"
#include "d9d/kernels/common/strided_rows.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Legend   R = num_rows, N = num_columns; all tensors are [R, N] of one dtype, and contiguous unless a StridedRows
//          follows them.
struct SiluMulInputs {
  Dtype dtype = Dtype::kFloat32;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  const void* gate = nullptr;
  StridedRows gate_rows;
  const void* up = nullptr;
  StridedRows up_rows;
};
struct SiluMulForwardArgs {
  SiluMulInputs inputs;
  void* out = nullptr;
};
struct SiluMulBackwardArgs {
  SiluMulInputs inputs;
  const void* grad_out = nullptr;
  StridedRows grad_out_rows;
  void* grad_gate = nullptr;  // null: not wanted
  void* grad_up = nullptr;    // null: not wanted
  StridedRows grad_rows;      // of both gradients; aligned to 16 bytes if N elements are a multiple of 16 bytes
};

// Both run on the current device and `stream` without synchronising. They throw StateError if the kernel does not
// start, ConfigError in a build without CUDA.
extern "C" void d9d_launch_silu_mul_forward(const SiluMulForwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_silu_mul_forward", decltype(d9d_launch_silu_mul_forward)>
    launch_silu_mul_forward;
extern "C" void d9d_launch_silu_mul_backward(const SiluMulBackwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_silu_mul_backward", decltype(d9d_launch_silu_mul_backward)>
    launch_silu_mul_backward;

// Legend   T = dtype of gate and up; A = its accumulator: double for double, otherwise float. Tensors are contiguous
//          unless a stride between rows follows them.
struct WeightedSiluMulInputs {
  Dtype dtype;
  std::int64_t num_rows;
  std::int64_t num_columns;
  const void* gate;  // [num_rows, num_columns] T
  std::int64_t gate_stride;
  const void* up;  // [num_rows, num_columns] T
  std::int64_t up_stride;
  const void* weights;  // [num_rows] A
};

struct WeightedSiluMulForwardArgs {
  WeightedSiluMulInputs inputs;
  void* out;  // [num_rows, num_columns] T
};
extern "C" void d9d_launch_weighted_silu_mul_forward(const WeightedSiluMulForwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_weighted_silu_mul_forward", decltype(d9d_launch_weighted_silu_mul_forward)>
    launch_weighted_silu_mul_forward;

struct WeightedSiluMulBackwardArgs {
  WeightedSiluMulInputs inputs;
  const void* grad_out;  // [num_rows, num_columns] T
  void* grad_gate;       // [num_rows, num_columns] T
  void* grad_up;         // [num_rows, num_columns] T
  std::int64_t grad_stride;
  void* grad_weights;  // [num_rows] A
};
extern "C" void d9d_launch_weighted_silu_mul_backward(const WeightedSiluMulBackwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_weighted_silu_mul_backward", decltype(d9d_launch_weighted_silu_mul_backward)>
    launch_weighted_silu_mul_backward;

}  // namespace d9d::kernels::detail
