// rms_norm_aten.h, with an addition before it if asked for, as one pass over GPU memory.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/kernels/common/strided_rows.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Rows of the weight gradient are added into at most this many sums, which are then added: two for each multiprocessor
// of an H200, and the same on all GPUs, so that the order of additions does not depend on the device.
constexpr std::int64_t kRmsNormPartials = 264;

// Legend   R = num_rows, N = num_columns, A = double for Dtype::kFloat64 rows, otherwise float. Tensors are [R, N] of
//          `dtype` and contiguous where no StridedRows stands beside them.
struct RmsNormForwardArgs {
  Dtype dtype = Dtype::kFloat32;
  Dtype weight_dtype = Dtype::kFloat32;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  const void* x = nullptr;
  StridedRows x_rows;
  const void* residual = nullptr;  // null: x is normed, otherwise sum = x + residual, rounded to dtype
  StridedRows residual_rows;
  void* sum = nullptr;           // written where there is a residual
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

// On the current device and `stream`, without waiting; num_rows > 0. The order of all sums is decided by
// sizes, dtypes and whether the views are aligned to 16 bytes. Throw StateError when a kernel does not start,
// ConfigError in a build without CUDA.
void launch_rms_norm_forward(const RmsNormForwardArgs& args, CUstream_st* stream);
void launch_rms_norm_backward(const RmsNormBackwardArgs& args, CUstream_st* stream);

// Parts of launch_rms_norm_backward(). Each starts all but the sum of `partials`, of which it writes as many as it
// returns, one a block.
// Rows and weights aligned to 16 bytes. Returns 0 and starts nothing where rows do not fit into registers.
unsigned launch_rms_norm_backward_of_long_rows(const RmsNormBackwardArgs& args, CUstream_st* stream);
// Any rows.
unsigned launch_rms_norm_backward_of_any_row(const RmsNormBackwardArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
