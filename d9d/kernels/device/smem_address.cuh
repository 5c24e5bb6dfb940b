// Addresses of shared memory as PTX instructions take them.
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

[[nodiscard]] __device__ __forceinline__ std::uint32_t smem_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// The byte offset of 16-byte chunk `chunk` of a row in a box with rows of 128 bytes that the TMA swizzled
// (CU_TENSOR_MAP_SWIZZLE_128B). Swizzled, reading a row of chunks or a column of eight chunks has no bank conflicts.
[[nodiscard]] __device__ __forceinline__ int swizzle_128b(int row, int chunk) {
  return row * 128 + ((chunk ^ (row % 8)) * 16);
}

}  // namespace d9d::kernels::detail
