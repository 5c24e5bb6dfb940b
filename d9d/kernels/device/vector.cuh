// Basics of device code: vectorised loads and stores, the accumulator type of an element type, and the offset of a
// strided row.
//
// Legend   T = double, float, __nv_bfloat16 or __half; Accumulator<T> = double for double, otherwise float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "d9d/kernels/common/strided_rows.h"

namespace d9d::kernels::detail {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffU;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// `kCount` contiguous elements, which a thread loads and stores in accesses of up to 16 bytes. Memory must be aligned
// to the access size.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vec {
  T value[kCount];
};

// The number of elements in 16 bytes.
template <class T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
template <class T>
using Vec16 = Vec<T, kWidth<T>>;

template <class T, int kCount = kWidth<T>>
__device__ __forceinline__ Vec<T, kCount> load_vec(const void* data, std::int64_t element) {
  return *reinterpret_cast<const Vec<T, kCount>*>(static_cast<const T*>(data) + element);
}

template <class T, int kCount>
__device__ __forceinline__ void store_vec(const Vec<T, kCount>& vec, void* data, std::int64_t element) {
  *reinterpret_cast<Vec<T, kCount>*>(static_cast<T*>(data) + element) = vec;
}

// Reads the first `count` elements one by one and sets the others to zero. With `is_whole` it reads all kCount elements
// as vectors instead, which needs alignment.
template <class T, int kCount>
__device__ __forceinline__ Vec<T, kCount> load_vec_partial(const T* from, int count, bool is_whole) {
  if (is_whole) return *reinterpret_cast<const Vec<T, kCount>*>(from);
  Vec<T, kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) result.value[i] = i < count ? from[i] : T(0.0F);
  return result;
}

template <class T, int kCount>
__device__ __forceinline__ void store_vec_partial(const Vec<T, kCount>& vec, int count, bool is_whole, T* to) {
  if (is_whole) {
    *reinterpret_cast<Vec<T, kCount>*>(to) = vec;
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i < count) to[i] = vec.value[i];
}

// Keeps elements that are needed again later packed in their registers until then. Without this call the compiler keeps
// the values that it widened for an earlier use, in twice the registers.
template <class T, int kCount>
__device__ __forceinline__ void keep_packed(Vec<T, kCount>& elements) {
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

// The index of the first element of a row.
__device__ __forceinline__ std::int64_t row_offset(const StridedRows& rows, std::int64_t row) {
  if (row < rows.inner_rows) return row * rows.inner_stride;
  if (row <= UINT32_MAX) {  // a 32-bit division costs a fifth of a 64-bit one
    const auto inner_rows = static_cast<std::uint32_t>(rows.inner_rows);
    const auto outer = static_cast<std::uint32_t>(row) / inner_rows;
    return outer * rows.outer_stride + (static_cast<std::uint32_t>(row) - outer * inner_rows) * rows.inner_stride;
  }
  return row / rows.inner_rows * rows.outer_stride + row % rows.inner_rows * rows.inner_stride;
}

}  // namespace d9d::kernels::detail
