// The CUDA kernel of copy_fp32_to_bf16_stochastic_. Free of torch headers.
#pragma once

#include <cstdint>

#include "d9d/core/device/cuda_function.h"
#include "d9d/core/rng/random_stream.h"

struct CUstream_st;

namespace d9d::kernels::detail {

struct StochasticCopyArgs {
  void* target;         // bfloat16
  const float* source;  // on the current device, as target
  std::int64_t size;    // at least 1
  RandomStream stream;
  ElementRows rows;
};

extern "C" void d9d_launch_copy_stochastic(const StochasticCopyArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_copy_stochastic", decltype(d9d_launch_copy_stochastic)>
    launch_copy_stochastic;

}  // namespace d9d::kernels::detail
