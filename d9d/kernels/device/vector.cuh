// What the device half of a .cu file needs: 16-byte loads and stores, the accumulator of an element type, sums over
// warps.
//
// Legend   T = double, float, __nv_bfloat16 or __half; Accumulator<T> = double for double, otherwise float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace d9d::kernels::detail {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffU;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Elements of 16 bytes: one memory transaction of a lane.
template <class T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

template <class T>
struct alignas(16) Vector {
  T value[kWidth<T>];
};

template <class T>
__device__ __forceinline__ Accumulator<T> widen(T value) {
  return static_cast<Accumulator<T>>(value);
}

// Rounds to nearest even.
template <class T>
__device__ __forceinline__ T narrow(Accumulator<T> value) {
  return static_cast<T>(value);
}

// The sum over the lanes of a warp, on every lane; the order of additions is fixed.
template <class A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

}  // namespace d9d::kernels::detail
