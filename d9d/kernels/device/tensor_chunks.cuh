// The device side of common/tensor_chunks.h: finds the tensor and the chunk that a block works on.
#pragma once

#include <cstdint>

#include "d9d/kernels/common/tensor_chunks.h"

namespace d9d::kernels::detail {

struct TensorChunk {
  int tensor;
  unsigned index;  // within the tensor
};

// `chunk` counts over all tensors. Searches the last tensor whose first chunk is at or before it.
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

}  // namespace d9d::kernels::detail
