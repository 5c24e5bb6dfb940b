// The CUDA kernels of global_norm_cuda. Free of torch headers.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"
#include "d9d/kernels/common/tensor_chunks.h"
#include "d9d/kernels/global_norm/norm_order.h"

struct CUstream_st;

namespace d9d::kernels::detail {

constexpr int kMaxNormTensors = 1536;            // as many as fit in a kernel's parameters
constexpr std::int64_t kNormChunkSize = 32'768;  // elements

struct PowerSumArgs {
  double* partial;  // for each chunk: the sum of its powers, or its largest magnitude
  TensorChunks<kMaxNormTensors> chunks;
  const void* data[kMaxNormTensors];
  std::int64_t size[kMaxNormTensors];
};
static_assert(sizeof(PowerSumArgs) <= 32764);

// args has at least one tensor, all of one dtype.
extern "C" void d9d_launch_power_sums(Dtype dtype, NormOrder order, const PowerSumArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_power_sums", decltype(d9d_launch_power_sums)> launch_power_sums;

// *norm = the root of the sum of `num_partial` partial sums, or the largest of them. Launches one block.
extern "C" void d9d_launch_norm_of_power_sums(NormOrder order, const double* partial, std::int64_t num_partial,
                                              double* norm, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_norm_of_power_sums", decltype(d9d_launch_norm_of_power_sums)>
    launch_norm_of_power_sums;

}  // namespace d9d::kernels::detail
