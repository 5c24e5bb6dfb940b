// How the threads of rms_norm share rows: a group of threads holds a whole row in registers, so that a row is read
// once. A group is half a warp, a warp, or some warps; a block has several, and each sums its rows by itself.
//
//   columns of a row:  | group * W | group * W | ...  kVectors times, W elements a thread each time
#pragma once

#include "d9d/kernels/device/cluster.cuh"
#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

template <int kThreadsOfGroup, int kVectorsOfThread, int kRowsAtOnce>
struct RowGroup {
  static constexpr int kThreads = kThreadsOfGroup;
  static constexpr int kVectors = kVectorsOfThread;  // of 16 bytes, a thread and row
  static constexpr int kRows = kRowsAtOnce;          // loaded before the first is used
};

// Calls `function(RowGroup)` with the smallest group that holds `num_vectors` vectors of 16 bytes; false: none does.
template <class Function>
bool with_row_group(std::int64_t num_vectors, const Function& function) {
  if (num_vectors <= 16) return function(RowGroup<16, 1, 2>()), true;
  if (num_vectors <= 32) return function(RowGroup<32, 1, 2>()), true;
  if (num_vectors <= 64) return function(RowGroup<32, 2, 1>()), true;
  if (num_vectors <= 128) return function(RowGroup<64, 2, 1>()), true;
  if (num_vectors <= 256) return function(RowGroup<64, 4, 1>()), true;
  if (num_vectors <= 512) return function(RowGroup<128, 4, 1>()), true;
  if (num_vectors <= 1024) return function(RowGroup<256, 4, 1>()), true;
  if (num_vectors <= 2048) return function(RowGroup<512, 4, 1>()), true;
  return false;
}

// Sums over the threads of a group, on every thread of it, in an order that only the sizes decide. All threads of the
// group call it together, with 0 and 1 in turns for `turn`; groups of the block do not wait for each other.
template <int kThreads, int kBlock, int kValues>
__device__ __forceinline__ void group_sum(float (&values)[kValues], int turn) {
#pragma unroll
  for (int offset = (kThreads < kWarpSize ? kThreads : kWarpSize) / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += __shfl_xor_sync(kFullWarp, values[i], offset);
  }
  if constexpr (kThreads > kWarpSize) {
    constexpr int kWarps = kThreads / kWarpSize;
    __shared__ float of_warps[2][kBlock / kWarpSize][kValues];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int group = warp / kWarps;
    if (threadIdx.x % kWarpSize == 0) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) of_warps[turn][warp][i] = values[i];
    }
    named_barrier_sync(group + 1, kThreads);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = 0;
#pragma unroll
      for (int other = 0; other < kWarps; ++other) values[i] += of_warps[turn][group * kWarps + other][i];
    }
  }
}

// Which elements of a row thread `thread` of a group holds as its vector `vector`.
template <class Group, class T>
__device__ __forceinline__ int column_of(int thread, int vector) {
  return (vector * Group::kThreads + thread) * kWidth<T>;
}

}  // namespace d9d::kernels::detail
