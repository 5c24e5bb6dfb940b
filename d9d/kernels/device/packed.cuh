// Elements that stay packed in registers and are widened to float one at a time, where they are used. Indices must be
// compile-time constants after unrolling.
//
// Example
//   const auto x = load_packed<__nv_bfloat16, 8>(row + column);
//   float squares = 0;
//   for (int j = 0; j < 8; ++j) squares += x[j] * x[j];
//   store_packed(pack<__nv_bfloat16>(results), out + column);
#pragma once

#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

// kCount elements of T = float, __nv_bfloat16 or __half. They take a multiple of 16 bytes, aligned to 16 in memory.
template <class T, int kCount>
struct alignas(16) Packed {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(T)) / 4;
  static_assert(kWords % 4 == 0);
  std::uint32_t word[kWords];

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000U);
    } else {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 == 0 ? word[i / 2] : word[i / 2] >> 16)));
    }
  }
};

template <class T, int kCount>
__device__ __forceinline__ Packed<T, kCount> load_packed(const void* from) {
  Packed<T, kCount> result;
#pragma unroll
  for (int i = 0; i < result.kWords / 4; ++i)
    reinterpret_cast<uint4*>(result.word)[i] = static_cast<const uint4*>(from)[i];
  return result;
}

template <class T, int kCount>
__device__ __forceinline__ void store_packed(const Packed<T, kCount>& packed, void* to) {
#pragma unroll
  for (int i = 0; i < packed.kWords / 4; ++i)
    static_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(packed.word)[i];
}

// Loads from global memory. The loads are volatile, so that the compiler keeps them in source order and does not delay
// them to the first use of their values.
template <class T, int kCount>
__device__ __forceinline__ Packed<T, kCount> load_packed_from_global(const void* from) {
  Packed<T, kCount> result;
#pragma unroll
  for (int i = 0; i < result.kWords; i += 4)
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result.word[i]), "=r"(result.word[i + 1]), "=r"(result.word[i + 2]), "=r"(result.word[i + 3])
                 : "l"(__cvta_generic_to_global(static_cast<const std::uint32_t*>(from) + i)));
  return result;
}

// Rounds to nearest even.
template <class T, int kCount>
__device__ __forceinline__ Packed<T, kCount> pack(const float (&values)[kCount]) {
  Packed<T, kCount> result;
#pragma unroll
  for (int i = 0; i < result.kWords; ++i) {
    if constexpr (sizeof(T) == 4) {
      result.word[i] = __float_as_uint(values[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      result.word[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    } else {
      const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
      result.word[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
  return result;
}

template <class T, int kCount>
__device__ __forceinline__ void clear(Packed<T, kCount>& packed) {
#pragma unroll
  for (int i = 0; i < packed.kWords; ++i) packed.word[i] = 0;
}

// Makes the compiler widen elements again at later uses, instead of keeping earlier widened values in twice the
// registers.
template <class T, int kCount>
__device__ __forceinline__ void keep_packed(Packed<T, kCount>& packed) {
#pragma unroll
  for (int i = 0; i < packed.kWords; ++i) asm volatile("" : "+r"(packed.word[i]));
}

}  // namespace d9d::kernels::detail
