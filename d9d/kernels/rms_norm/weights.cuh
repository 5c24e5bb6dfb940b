// The factors of rms_norm as the kernels read them.
#pragma once

#include "d9d/base/dtype.h"
#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

// One factor in A, of a weight whose type is known when the kernel runs.
template <class A>
__device__ __forceinline__ A factor_at(const void* weight, Dtype dtype, std::int64_t column, bool zero_centered) {
  A factor = 0;
  switch (dtype) {
    case Dtype::kFloat64:
      factor = static_cast<A>(static_cast<const double*>(weight)[column]);
      break;
    case Dtype::kFloat32:
      factor = static_cast<const float*>(weight)[column];
      break;
    case Dtype::kBFloat16:
      factor = static_cast<A>(widen(static_cast<const __nv_bfloat16*>(weight)[column]));
      break;
    case Dtype::kFloat16:
      factor = static_cast<A>(widen(static_cast<const __half*>(weight)[column]));
      break;
  }
  return zero_centered ? factor + 1 : factor;
}

// Calls `function(Element<T>, Element<Weight>)` for the pairs that have kernels of their own: equal types, and wide
// weights of narrow rows. False: another pair.
template <class Function>
bool with_common_types(Dtype dtype, Dtype weight_dtype, const Function& function) {
  if (dtype == Dtype::kFloat32 && weight_dtype == dtype) return function.template operator()<float, float>(), true;
  if (dtype == Dtype::kBFloat16 && weight_dtype == dtype)
    return function.template operator()<__nv_bfloat16, __nv_bfloat16>(), true;
  if (dtype == Dtype::kBFloat16 && weight_dtype == Dtype::kFloat32)
    return function.template operator()<__nv_bfloat16, float>(), true;
  if (dtype == Dtype::kFloat16 && weight_dtype == dtype) return function.template operator()<__half, __half>(), true;
  return false;
}

}  // namespace d9d::kernels::detail
