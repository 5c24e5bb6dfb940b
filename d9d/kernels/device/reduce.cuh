// Reductions over the threads of a warp, of a part of it, or of a block. Sizes alone decide the order of combining.
//
// Example
//   __shared__ float scratch[kWarpSize];
//   const float sum = block_sum(value, scratch);    // on every thread
#pragma once

#include "d9d/kernels/device/cluster.cuh"
#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

// Combines the values of the lanes of a warp in a fixed order. Every lane calls it and gets the result, which is the
// same on all lanes if `combine` is commutative.
template <class A, class Combine>
__device__ __forceinline__ A warp_reduce(A value, const Combine& combine) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(kFullWarp, value, offset));
  return value;
}

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
  return warp_reduce(value, [](A a, A b) { return a + b; });
}

// Sums each of kValues numbers over groups of `group` neighbouring lanes; every lane gets the sums of its group. The
// group size is a power of two, known only at run time. All threads of the warp call it.
template <int kValues>
__device__ __forceinline__ void lane_group_sums(float (&values)[kValues], int group) {
  for (int offset = group / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += __shfl_xor_sync(kFullWarp, values[i], offset);
  }
}

// Sums each of kValues numbers over a group of kThreads neighbouring threads of a block of kBlock; every thread gets
// the sums of its group. A group is a part of a warp or whole warps. All threads of the warp, or of the group where
// that is larger, call it together; `parity` alternates between 0 and 1 from call to call. Different groups do not wait
// for each other.
template <int kThreads, int kBlock, int kValues>
__device__ __forceinline__ void thread_group_sums(float (&values)[kValues], int parity) {
#pragma unroll
  for (int offset = (kThreads < kWarpSize ? kThreads : kWarpSize) / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += __shfl_xor_sync(kFullWarp, values[i], offset);
  }
  if constexpr (kThreads > kWarpSize) {
    constexpr int kWarps = kThreads / kWarpSize;
    __shared__ float warp_sums[2][kBlock / kWarpSize][kValues];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int group = warp / kWarps;
    if (threadIdx.x % kWarpSize == 0) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) warp_sums[parity][warp][i] = values[i];
    }
    named_barrier_sync(group + 1, kThreads);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = 0;
#pragma unroll
      for (int other = 0; other < kWarps; ++other) values[i] += warp_sums[parity][group * kWarps + other][i];
    }
  }
}

// Combines `value` over the block, whose size is a multiple of the warp size. Every thread calls it and gets the
// result. scratch has kWarpSize elements in shared memory and may be reused when the call returns.
template <class A, class Combine>
__device__ __forceinline__ A block_reduce(A value, A neutral, A* scratch, const Combine& combine) {
  const unsigned lane = threadIdx.x % kWarpSize;
  value = warp_reduce(value, combine);
  if (lane == 0) scratch[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = warp_reduce(lane < blockDim.x / kWarpSize ? scratch[lane] : neutral, combine);
  __syncthreads();
  return value;
}

template <class A>
__device__ __forceinline__ A block_sum(A value, A* scratch) {
  return block_reduce(value, A{0}, scratch, [](A a, A b) { return a + b; });
}

// Sums each of kValues numbers over a block of kBlock threads. All threads call it and get the sums.
template <int kBlock, class A, int kValues>
__device__ __forceinline__ void block_sums(A (&values)[kValues]) {
  __shared__ A warp_totals[kBlock / kWarpSize][kValues];
  __syncthreads();  // until then threads may still read warp_totals of an earlier call
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const A total = warp_sum(values[i]);
    if (threadIdx.x % kWarpSize == 0) warp_totals[threadIdx.x / kWarpSize][i] = total;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    values[i] = 0;
    for (int warp = 0; warp < kBlock / kWarpSize; ++warp) values[i] += warp_totals[warp][i];
  }
}

// Sums each of kValues numbers (a power of two) over the warp. Lane l gets the sum of number l / (32 / kValues).
template <int kValues>
__device__ __forceinline__ float warp_reduce_scatter(float (&values)[kValues]) {
  const unsigned lane = threadIdx.x % kWarpSize;
  int offset = kWarpSize / 2;
#pragma unroll
  for (int left = kValues / 2; left >= 1; left /= 2) {  // a lane sends half of its numbers and keeps the other half
    const bool is_upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = is_upper ? values[i] : values[i + left];
      const float kept = is_upper ? values[i + left] : values[i];
      values[i] = kept + __shfl_xor_sync(kFullWarp, given, offset);
    }
    offset /= 2;
  }
  for (; offset >= 1; offset /= 2) values[0] += __shfl_xor_sync(kFullWarp, values[0], offset);
  return values[0];
}

// Sums each of kValues numbers (a power of two) over the block. Lane l of every warp gets the sum of
// number l % kValues. All threads call it. It has a single block barrier, so two successive calls must not use the same
// `scratch`; the call after them may use the first one again.
template <int kValues, int kWarps>
__device__ __forceinline__ float block_reduce_scatter(float (&values)[kValues], float (&scratch)[kWarps][kValues]) {
  constexpr int kLanes = kWarpSize / kValues;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float sum_of_warp = warp_reduce_scatter(values);
  if (lane % kLanes == 0) scratch[threadIdx.x / kWarpSize][lane / kLanes] = sum_of_warp;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int first = 0; first < kWarps; first += kLanes) {
    const int warp = first + lane / kValues;
    if (kWarps % kLanes == 0 || warp < kWarps) sum += scratch[warp][lane % kValues];
  }
#pragma unroll
  for (int offset = kValues; offset < kWarpSize; offset *= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  return sum;
}

}  // namespace d9d::kernels::detail
