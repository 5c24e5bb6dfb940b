// Matrix products that spend a large part of their time on writing the result, by a cuBLAS kernel that is not cuBLAS's
// first choice (docs/decisions/0011-which-kernel-of-cublas.md). They take plain pointers.
//
// Legend   R rows and C columns of the result, K terms of each sum
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Rows of contiguous elements, with `stride` elements from a row to the next. Address and rows are aligned to 16 bytes.
struct CublasRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

// out [R, C] = x [R, K] times weight [C, K]^T, summed in float.
struct CublasProductArgs {
  int device = 0;                  // must be the current device
  Dtype dtype = Dtype::kBFloat16;  // of x and weight: kBFloat16 or kFloat16
  bool is_out_float = false;       // otherwise out has the dtype of x and weight
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  std::int64_t num_terms = 0;
  CublasRows x;
  CublasRows weight;
  void* out = nullptr;  // aligned as CublasRows
  std::int64_t out_stride = 0;
};

// Runs without workspace and without synchronising. One thread block computes each sum, so results are bitwise
// reproducible. Returns false and does nothing if cuBLAS has no such kernel. May be called from any thread.
extern "C" bool d9d_write_cublas_product(const CublasProductArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_write_cublas_product", decltype(d9d_write_cublas_product)> write_cublas_product;

}  // namespace d9d::kernels::detail
