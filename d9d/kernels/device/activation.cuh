// sigmoid and SiLU. For half-precision elements they use fast approximate instructions, whose error disappears when the
// result is rounded. All kernels of an op use the same variant, because the variants differ in their last bits.
#pragma once

#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

template <class T>
__device__ __forceinline__ Accumulator<T> sigmoid(Accumulator<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0F, 1.0F + __expf(-x));
  } else {
    return 1 / (1 + exp(-x));
  }
}

template <class T>
__device__ __forceinline__ Accumulator<T> silu(Accumulator<T> x) {
  if constexpr (sizeof(T) == 2) {
    return x * sigmoid<T>(x);
  } else {
    return x / (1 + exp(-x));  // one rounding less
  }
}

// SiLU as silu() computes it, but with one rounding less in half precision too.
template <class T>
__device__ __forceinline__ Accumulator<T> silu_by_division(Accumulator<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(x, 1.0F + __expf(-x));
  } else {
    return x / (1 + exp(-x));
  }
}

// The variant with the fewest instructions. Its error is 1 to 2 ulp, so it is for results that are rounded to bf16.
__device__ __forceinline__ float fast_sigmoid(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0F + __expf(-x)));
  return result;
}

}  // namespace d9d::kernels::detail
