// What the device half of a .cu file needs: 16-byte loads and stores, the accumulator of an element type, sums over
// warps, where a strided row begins.
//
// Legend   T = double, float, __nv_bfloat16 or __half; Accumulator<T> = double for double, otherwise float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "d9d/kernels/device/strided_rows.h"

namespace d9d::kernels::detail {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffU;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// `kCount` elements side by side, moved in pieces of up to 16 bytes; memory is aligned to such a piece.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Elements {
  T value[kCount];
};

// Elements of 16 bytes: one memory transaction of a lane.
template <class T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
template <class T>
using Vector = Elements<T, kWidth<T>>;

template <class T>
__device__ __forceinline__ Vector<T> load_vector(const void* data, std::int64_t element) {
  return *reinterpret_cast<const Vector<T>*>(static_cast<const T*>(data) + element);
}

template <class T>
__device__ __forceinline__ void store_vector(const Vector<T>& vector, void* data, std::int64_t element) {
  *reinterpret_cast<Vector<T>*>(static_cast<T*>(data) + element) = vector;
}

// Elements that are needed again later stay packed in their registers until then. Without it the compiler keeps what it
// widened for an earlier use, in twice the registers.
template <class T, int kCount>
__device__ __forceinline__ void keep_packed(Elements<T, kCount>& elements) {
  static_assert(sizeof(elements) % sizeof(std::uint32_t) == 0);
  auto* const words = reinterpret_cast<std::uint32_t*>(&elements);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(elements) / sizeof(std::uint32_t)); ++i)
    asm volatile("" : "+r"(words[i]));
}

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

// Sums over a block of kBlock threads, on every thread, in a fixed order. All threads call it.
template <int kBlock, class A, int kValues>
__device__ __forceinline__ void block_sum(A (&values)[kValues]) {
  __shared__ A of_warps[kBlock / kWarpSize][kValues];
  __syncthreads();  // an earlier call's sums are read
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const A of_warp = warp_sum(values[i]);
    if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize][i] = of_warp;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    values[i] = 0;
    for (int warp = 0; warp < kBlock / kWarpSize; ++warp) values[i] += of_warps[warp][i];
  }
}

// First element of a row.
__device__ __forceinline__ std::int64_t row_offset(const StridedRows& rows, std::int64_t row) {
  if (row < rows.inner_rows) return row * rows.inner_stride;
  if (row <= UINT32_MAX) {  // rows of two strides: a division of 32 bits costs a fifth of one of 64
    const auto inner_rows = static_cast<std::uint32_t>(rows.inner_rows);
    const auto outer = static_cast<std::uint32_t>(row) / inner_rows;
    return outer * rows.outer_stride + (static_cast<std::uint32_t>(row) - outer * inner_rows) * rows.inner_stride;
  }
  return row / rows.inner_rows * rows.outer_stride + row % rows.inner_rows * rows.inner_stride;
}

}  // namespace d9d::kernels::detail
