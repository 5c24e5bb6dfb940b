// The CUDA kernel of sum_ranges. Free of torch headers.
#pragma once

#include <array>
#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Legend  B batch, S positions, C columns (a multiple of 8, contiguous). All addresses and strides are multiples of 16
//         bytes.
struct RangeSumArgs {
  static constexpr int kMaxRanges = 8;
  static constexpr std::int64_t kMaxVectors = 1LL << 31;  // of 8 elements of target, fewer than which there are
  struct Rows {
    void* data = nullptr;  // [B, positions, C]
    std::int64_t batch_stride = 0;
    std::int64_t position_stride = 0;
    std::int64_t first_position = 0;
    std::int64_t num_positions = 0;
  };
  Dtype dtype = Dtype::kBFloat16;  // of all: kBFloat16 or kFloat16
  std::int64_t batch = 0;
  std::int64_t num_columns = 0;
  Rows target;
  int num_ranges = 0;
  std::array<Rows, kMaxRanges> ranges = {};  // read only
};
extern "C" void d9d_launch_range_sum(const RangeSumArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_range_sum", decltype(d9d_launch_range_sum)> launch_range_sum;

}  // namespace d9d::kernels::detail
