// Which chunk a block works on, and vectors of elements that may be cut off or unaligned.
#pragma once

#include <cstdint>

#include "d9d/kernels/device/tensor_chunks.h"

namespace d9d::kernels::detail {

struct TensorChunk {
  int tensor;
  unsigned index;  // within the tensor
};

// The last tensor that starts at or before `chunk`.
template <int kMaxTensors>
__device__ __forceinline__ TensorChunk find_chunk(const TensorChunks<kMaxTensors>& chunks, unsigned chunk) {
  int low = 0;
  int high = chunks.num_tensors;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (chunks.first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {low, chunk - chunks.first_chunk[low]};
}

// Elements that one lane moves in transactions of up to 16 bytes.
template <class T, int kSize>
struct alignas(kSize * sizeof(T) < 16 ? kSize * sizeof(T) : 16) Pack {
  T value[kSize];
};

__device__ __forceinline__ bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

// Reads the first `count` elements, all of them at once where `is_whole`; the others are zero.
template <class T, int kSize>
__device__ __forceinline__ Pack<T, kSize> load_pack(const T* from, int count, bool is_whole) {
  if (is_whole) return *reinterpret_cast<const Pack<T, kSize>*>(from);
  Pack<T, kSize> result;
#pragma unroll
  for (int i = 0; i < kSize; ++i) result.value[i] = i < count ? from[i] : T(0.0F);
  return result;
}

template <class T, int kSize>
__device__ __forceinline__ void store_pack(const Pack<T, kSize>& pack, int count, bool is_whole, T* to) {
  if (is_whole) {
    *reinterpret_cast<Pack<T, kSize>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i)
    if (i < count) to[i] = pack.value[i];
}

}  // namespace d9d::kernels::detail
