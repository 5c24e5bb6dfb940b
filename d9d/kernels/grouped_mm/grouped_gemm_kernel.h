// Grouped matrix products on Hopper's tensor cores. The group sizes stay on the device; only the result and the tile
// counter are written to global memory, and the result is bitwise reproducible.
//
// Legend   N rows over all groups, G groups, rows of group g: [offsets[g], offsets[g + 1]). bf16 in, fp32 sums.
//          All tensors are contiguous and aligned to 16 bytes; inner and features, in and out_features are multiples
//          of 8; 1 <= G <= 288, 1 <= N.
#pragma once

#include <cstdint>

#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// A summand of the result.
struct GroupedGemmTerm {
  const void* rows;     // [N, inner] bf16
  const void* weights;  // [G, inner, features] bf16
};

// out[rows of g] = sum over num_terms of terms: rows[rows of g] @ weights[g]
struct GroupedGemmArgs {
  std::int64_t num_rows;
  int num_groups;
  int inner;
  int features;                 // of the result
  bool weights_are_transposed;  // weights are stored as [G, features, inner]
  int num_terms;                // 1 or 2
  GroupedGemmTerm terms[2];
  const std::int32_t* offsets;  // [G + 1]
  std::int32_t* tile_counter;   // scratch: one number
  void* out;                    // [N, features] bf16; rows that belong to no group are not written
};
extern "C" void d9d_launch_grouped_gemm(const GroupedGemmArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_grouped_gemm", decltype(d9d_launch_grouped_gemm)> launch_grouped_gemm;

// out[g] = x[rows of g]^T @ y[rows of g], zeros for groups without rows.
struct GroupedGemmWgradArgs {
  std::int64_t num_rows;
  int num_groups;
  int in;
  int out_features;
  const void* x;                // [N, in] bf16
  const void* y;                // [N, out_features] bf16
  const std::int32_t* offsets;  // [G + 1]
  std::int32_t* tile_counter;   // scratch: one number
  void* out;                    // [G, in, out_features]
  bool out_is_float;            // otherwise bf16
};
extern "C" void d9d_launch_grouped_gemm_wgrad(const GroupedGemmWgradArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_grouped_gemm_wgrad", decltype(d9d_launch_grouped_gemm_wgrad)>
    launch_grouped_gemm_wgrad;

}  // namespace d9d::kernels::detail
