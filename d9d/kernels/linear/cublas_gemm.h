// Products of which writing takes a good part, by a kernel of cuBLAS that is not its first choice
// (docs/decisions/0011-which-kernel-of-cublas.md). On plain pointers, exported by libd9d_cuda.so as
// "d9d_cublas_product".
//
// Legend   R rows, C columns of the result, K terms of each sum
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Rows in one piece each, `stride` elements apart; both aligned to 16 bytes.
struct CublasRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

// out [R, C] = x [R, K] times weight [C, K]^T, summed in float.
struct CublasProductArgs {
  int device = 0;                  // the current one
  Dtype dtype = Dtype::kBFloat16;  // of x and weight; or kFloat16
  bool is_out_float = false;       // or of that dtype
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  std::int64_t num_terms = 0;
  CublasRows x;
  CublasRows weight;
  void* out = nullptr;  // as the others
  std::int64_t out_stride = 0;
};

// Without workspace and without waiting. Each sum is of one block, so that runs repeat each other. False: cuBLAS has no
// such kernel, and nothing was done. From any thread.
using CublasProduct = bool (*)(const CublasProductArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
