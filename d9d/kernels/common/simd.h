// Vectors of 64 bytes for CPU loops, written with the compiler's vector extension: the same source becomes AVX-512,
// AVX2 and SSE2 code, of which one is chosen when the program starts. bfloat16 is computed in float, float in float and
// double in double.
//
// Example
//   template <class T>
//   D9D_SIMD_CLONES void square(const T* in, T* out, std::int64_t size) {
//     for (std::int64_t i = 0; i < size; i += Lanes<T>::kWidth) {
//       typename Lanes<T>::Vec x;
//       const std::int64_t count = std::min(Lanes<T>::kWidth, size - i);
//       load(in + i, count, x);
//       x = x * x;
//       store(x, count, out + i);
//     }
//   }
// Functions marked D9D_SIMD_CLONES must be in an anonymous namespace. Vectors are passed by reference, because their
// calling convention depends on the instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>

// ThreadSanitizer cannot run the start-up code that picks a clone.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define D9D_SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define D9D_SIMD_CLONES
#endif
#define D9D_ALWAYS_INLINE __attribute__((always_inline)) inline

namespace d9d::kernels::detail {

// How elements of type T are computed: in type `Accumulator`, of which a `Vec` holds kWidth.
template <class T>
struct Lanes {
  using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static constexpr std::int64_t kWidth = 64 / sizeof(Accumulator);
  typedef Accumulator Vec __attribute__((vector_size(64)));  // NOLINT(modernize-use-using): the attribute needs it
};

typedef std::uint32_t Bits32 __attribute__((vector_size(64)));  // NOLINT(modernize-use-using): as above
typedef std::uint16_t Bits16 __attribute__((vector_size(32)));  // NOLINT(modernize-use-using): as above

// Reads `count` <= kWidth elements; the other lanes are zero.
template <class T>
D9D_ALWAYS_INLINE void load(const T* from, std::int64_t count, typename Lanes<T>::Vec& to) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    Bits16 half{};
    if (count == Lanes<T>::kWidth) {
      std::memcpy(&half, from, sizeof(half));
    } else {
      std::memcpy(&half, from, static_cast<std::size_t>(count) * sizeof(T));
    }
    const Bits32 bits = __builtin_convertvector(half, Bits32) << 16;
    std::memcpy(&to, &bits, sizeof(to));
  } else if (count == Lanes<T>::kWidth) {
    std::memcpy(&to, from, sizeof(to));
  } else {
    to = typename Lanes<T>::Vec{};
    std::memcpy(&to, from, static_cast<std::size_t>(count) * sizeof(T));
  }
}

// Writes the first `count` lanes; bfloat16 rounds to nearest, ties to even.
template <class T>
D9D_ALWAYS_INLINE void store(const typename Lanes<T>::Vec& from, std::int64_t count, T* to) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    Bits32 bits;
    std::memcpy(&bits, &from, sizeof(bits));
    const Bits32 rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const Bits16 half = __builtin_convertvector(from != from ? (bits >> 16) | 0x40U : rounded, Bits16);
    if (count == Lanes<T>::kWidth) {
      std::memcpy(to, &half, sizeof(half));
    } else {
      std::memcpy(to, &half, static_cast<std::size_t>(count) * sizeof(T));
    }
  } else if (count == Lanes<T>::kWidth) {
    std::memcpy(to, &from, sizeof(from));
  } else {
    std::memcpy(to, &from, static_cast<std::size_t>(count) * sizeof(T));
  }
}

// The sum of all lanes, in a fixed order.
template <class Vec>
[[nodiscard]] D9D_ALWAYS_INLINE auto sum_of_lanes(const Vec& lanes) {
  auto sum = lanes[0];
  for (std::size_t lane = 1; lane < sizeof(Vec) / sizeof(sum); ++lane) sum += lanes[lane];
  return sum;
}

using FloatVec = Lanes<float>::Vec;
using DoubleVec = Lanes<double>::Vec;

// x = e^x. float: within 2 ulp, zero below -87.3, infinite above 88.3; double: the C library's. NaN stays NaN.
D9D_ALWAYS_INLINE void exp_in_place(DoubleVec& x) {
  for (std::size_t lane = 0; lane < sizeof(x) / sizeof(double); ++lane) x[lane] = std::exp(x[lane]);
}
D9D_ALWAYS_INLINE void exp_in_place(FloatVec& x) {  // e^x = 2^n * e^r with |r| <= ln(2)/2, Taylor polynomial in r
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
  constexpr float kMin = -87.3F;
  constexpr float kMax = 88.3F;
  const FloatVec clamped = x < kMin ? FloatVec{} + kMin : (x > kMax ? FloatVec{} + kMax : x);
  const FloatVec shifted = clamped * kLog2E + kRound;
  const FloatVec n = shifted - kRound;
  const FloatVec r = (clamped - n * kLn2High) - n * kLn2Low;
  FloatVec p = r * (1.0F / 5040.0F) + (1.0F / 720.0F);
  p = p * r + (1.0F / 120.0F);
  p = p * r + (1.0F / 24.0F);
  p = p * r + (1.0F / 6.0F);
  p = p * r + 0.5F;
  p = (p * r) * r + r + 1.0F;
  Bits32 bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + 0x3F800000U;
  FloatVec two_to_n;
  std::memcpy(&two_to_n, &bits, sizeof(bits));
  x = x < kMin ? FloatVec{} : (x > kMax ? FloatVec{} + INFINITY : p * two_to_n);
}

}  // namespace d9d::kernels::detail
