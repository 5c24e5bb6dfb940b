// The CUDA kernels of embedding_rows: rows of gradients added to the rows of a table's gradient.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Sorted rows are processed in chunks of this many.
inline constexpr std::int64_t kRowsOfChunk = 16;

// Legend   N = num_rows, H = num_columns, C = chunks of N rows. All tensors are contiguous.
struct AddSortedRowsArgs {
  Dtype sums_dtype = Dtype::kFloat32;   // kBFloat16 or kFloat32
  Dtype rows_dtype = Dtype::kFloat32;   // kBFloat16 or kFloat32
  void* sums = nullptr;                 // [V, H], has values
  const void* rows = nullptr;           // [N, H]
  const int* ids = nullptr;             // [N], ascending
  const std::int64_t* order = nullptr;  // [N], the row of each id
  float* partials = nullptr;            // [C, 2, H], aligned to 16 bytes, is written
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
};

// sums[ids[i]] += rows[order[i]]: the sum of the rows of an id is made in fp32, always in the same order, and added
// with one rounding. Runs on the current device and `stream` without synchronising. Throws StateError if a kernel does
// not start, ConfigError in a build without CUDA.
extern "C" void d9d_launch_add_sorted_rows(const AddSortedRowsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_add_sorted_rows", decltype(d9d_launch_add_sorted_rows)>
    launch_add_sorted_rows;

}  // namespace d9d::kernels::detail
