// The CUDA kernels of rms_norm and add_rms_norm.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"
#include "d9d/kernels/common/strided_rows.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// The weight gradient is summed over rows into at most this many partial sums, which are then added: two for each
// multiprocessor of an H200. The number is the same on all GPUs, so that the order of additions does not depend on the
// device.
constexpr std::int64_t kRmsNormPartials = 264;

// Legend   R = num_rows, N = num_columns, A = double for Dtype::kFloat64 rows, otherwise float. Tensors are [R, N] of
//          `dtype`, and contiguous unless a StridedRows follows them.
struct RmsNormForwardArgs {
  Dtype dtype = Dtype::kFloat32;
  Dtype weight_dtype = Dtype::kFloat32;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  const void* x = nullptr;
  StridedRows x_rows;
  const void* residual = nullptr;  // null: x is normalised; otherwise sum = x + residual, rounded to dtype
  StridedRows residual_rows;
  void* sum = nullptr;           // written if there is a residual
  const void* weight = nullptr;  // [N] of weight_dtype, contiguous
  bool zero_centered = false;
  double eps = 0;
  void* out = nullptr;
};

struct RmsNormBackwardArgs {
  Dtype dtype = Dtype::kFloat32;
  Dtype weight_dtype = Dtype::kFloat32;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  const void* grad_out = nullptr;
  StridedRows grad_out_rows;
  const void* x = nullptr;
  StridedRows x_rows;
  const void* grad_sum = nullptr;  // added to grad_x; null: nothing
  StridedRows grad_sum_rows;
  const void* weight = nullptr;
  bool zero_centered = false;
  double eps = 0;
  void* grad_x = nullptr;       // null: not wanted
  void* partials = nullptr;     // [kRmsNormPartials, N] in A: scratch of the weight gradient
  void* grad_weight = nullptr;  // [N] of weight_dtype; null: not wanted
};

// Both run on the current device and `stream` without synchronising; num_rows > 0. Only sizes, dtypes and whether the
// rows are aligned to 16 bytes decide the order of all sums. They throw StateError if a kernel does not start,
// ConfigError in a build without CUDA.
extern "C" void d9d_launch_rms_norm_forward(const RmsNormForwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_rms_norm_forward", decltype(d9d_launch_rms_norm_forward)>
    launch_rms_norm_forward;
extern "C" void d9d_launch_rms_norm_backward(const RmsNormBackwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_rms_norm_backward", decltype(d9d_launch_rms_norm_backward)>
    launch_rms_norm_backward;

// Parts of launch_rms_norm_backward(), which then adds up the partial sums. Each launches the backward, whose blocks
// write one row of `partials` each, and returns the number of blocks.
// This one needs rows and weights aligned to 16 bytes. It returns 0 and launches nothing if rows do not fit into
// registers.
unsigned launch_rms_norm_backward_of_long_rows(const RmsNormBackwardArgs& args, CUstream_st* stream);
// This one takes any rows.
unsigned launch_rms_norm_backward_of_any_row(const RmsNormBackwardArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
