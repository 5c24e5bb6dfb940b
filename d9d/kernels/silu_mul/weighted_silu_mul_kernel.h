// The CUDA kernels of weighted_silu_mul.
//
// Legend   T = dtype of gate and up; A = its accumulator: double for double, otherwise float. Tensors are contiguous
//          unless a stride between rows follows them.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"

struct CUstream_st;

namespace d9d::kernels::detail {

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
void launch_weighted_silu_mul_forward(const WeightedSiluMulForwardArgs& args, CUstream_st* stream);

struct WeightedSiluMulBackwardArgs {
  WeightedSiluMulInputs inputs;
  const void* grad_out;  // [num_rows, num_columns] T
  void* grad_gate;       // [num_rows, num_columns] T
  void* grad_up;         // [num_rows, num_columns] T
  std::int64_t grad_stride;
  void* grad_weights;  // [num_rows] A
};
void launch_weighted_silu_mul_backward(const WeightedSiluMulBackwardArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
