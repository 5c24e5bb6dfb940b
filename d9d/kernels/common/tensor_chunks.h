// Many tensors of different sizes in one launch: each is cut into chunks of the same size, and a thread block processes
// one chunk, so that large and small tensors use the GPU equally well. The table is passed in the kernel's parameters
// (up to 32,764 bytes), so no copy to the device is needed that could become stale.
//
// Example
//   struct Args { TensorChunks<128> chunks; float* data[128]; };
//   args.data[args.chunks.add(tensor.numel(), kChunk)] = ...;             // host
//   const TensorChunk chunk = find_chunk(args.chunks, blockIdx.x);        // device, tensor_chunks.cuh
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

template <int kMaxTensors>
struct TensorChunks {
  int num_tensors = 0;
  unsigned first_chunk[kMaxTensors + 1] = {};  // of each tensor; then the number of all chunks

  [[nodiscard]] bool is_full() const { return num_tensors == kMaxTensors; }
  [[nodiscard]] unsigned num_chunks() const { return first_chunk[num_tensors]; }
  // Appends a tensor of `size` >= 1 elements and returns its index. Must not be called when is_full().
  int add(std::int64_t size, std::int64_t chunk_size) {
    const auto num_new = static_cast<unsigned>((size + chunk_size - 1) / chunk_size);
    first_chunk[num_tensors + 1] = first_chunk[num_tensors] + num_new;
    return num_tensors++;
  }
};

}  // namespace d9d::kernels::detail
