// What the kernels of rms_norm share: their types, their weights, and the division of rows among threads. A group of
// threads holds a whole row in registers, so that a row is read once. A group is half a warp, a warp, or several warps;
// a block has one or more groups, and each sums its rows by itself.
//
//   columns of a row:  | group * W | group * W | ...  kVectors times, W elements per thread each time
#pragma once

#include "d9d/base/dtype.h"
#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

// The weight of a column in A, plus 1 when zero-centred. The dtype of the weights is a run-time argument.
template <class A>
__device__ __forceinline__ A weight_at(const void* weights, Dtype dtype, std::int64_t column, bool zero_centered) {
  A weight = 0;
  switch (dtype) {
    case Dtype::kFloat64:
      weight = static_cast<A>(static_cast<const double*>(weights)[column]);
      break;
    case Dtype::kFloat32:
      weight = static_cast<const float*>(weights)[column];
      break;
    case Dtype::kBFloat16:
      weight = static_cast<A>(widen(static_cast<const __nv_bfloat16*>(weights)[column]));
      break;
    case Dtype::kFloat16:
      weight = static_cast<A>(widen(static_cast<const __half*>(weights)[column]));
      break;
  }
  return zero_centered ? weight + 1 : weight;
}

// Calls `function.operator()<T, Weight>()` for the pairs of types that have kernels of their own: equal types other
// than double, and float weights of bf16 rows. Returns false for other pairs.
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

template <int kThreadsOfGroup, int kVectorsOfThread, int kRowsAtOnce>
struct RowGroup {
  static constexpr int kThreads = kThreadsOfGroup;
  static constexpr int kVectors = kVectorsOfThread;  // vectors of 16 bytes that a thread has of a row
  static constexpr int kRows = kRowsAtOnce;          // rows that a group processes together
};

// Calls `function(RowGroup)` with the smallest group that holds `num_vectors` vectors of 16 bytes. Returns false if no
// group does.
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

// The first column of vector `vector` of thread `thread` of a group.
template <class Group, class T>
__device__ __forceinline__ int column_of(int thread, int vector) {
  return (vector * Group::kThreads + thread) * kWidth<T>;
}

// grad_x of an element, plus `added` with kAdds. Adds the element's part of the gradient of its column's weight.
template <bool kAdds, class T>
__device__ __forceinline__ T backward_of_element(T x, T grad, T added, float weight, float inv_rms, float x_coefficient,
                                                 float& grad_weight) {
  const float value = widen(x);
  const float scaled = widen(grad) * inv_rms;
  grad_weight += scaled * value;
  const float grad_of_norm = scaled * weight - value * x_coefficient;
  return narrow<T>(kAdds ? grad_of_norm + widen(added) : grad_of_norm);
}

}  // namespace d9d::kernels::detail
