// Reductions over the threads of a block; the order of combining is fixed.
//
// Example
//   __shared__ float scratch[kWarpSize];
//   const float sum = block_sum(value, scratch);    // on every thread
#pragma once

#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

// Full warps only. Every thread of the block calls it; scratch, of kWarpSize elements, is free again when it returns.
template <class A, class Combine>
__device__ __forceinline__ A block_reduce(A value, A neutral, A* scratch, const Combine& combine) {
  const auto of_warp = [&](A of_lane) {
#pragma unroll
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
      of_lane = combine(of_lane, __shfl_xor_sync(kFullWarp, of_lane, offset));
    return of_lane;
  };
  const unsigned lane = threadIdx.x % kWarpSize;
  value = of_warp(value);
  if (lane == 0) scratch[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = of_warp(lane < blockDim.x / kWarpSize ? scratch[lane] : neutral);
  __syncthreads();
  return value;
}

template <class A>
__device__ __forceinline__ A block_sum(A value, A* scratch) {
  return block_reduce(value, A{0}, scratch, [](A a, A b) { return a + b; });
}

}  // namespace d9d::kernels::detail
