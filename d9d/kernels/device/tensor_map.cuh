// Tensor maps, which tell the tensor memory accelerator (TMA) the shape of a tensor in global memory and of the boxes
// that it copies to shared memory. There a box has rows of 128 bytes, whose 16-byte chunks are swizzled within groups
// of eight rows so that the tensor cores read them without bank conflicts. Elements outside the tensor arrive as zeros.
//
// Example (host)
//   const CUtensorMap map = tensor_map({.data = x, .sizes = {in, num_rows}, .box = {64, 128}});
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "d9d/base/check.h"

namespace d9d::kernels::detail {

// A tensor of up to three dims, listed from the innermost out; a missing dim has size 1.
struct TiledTensor {
  const void* data;                    // aligned to 16 bytes, as is each row
  std::array<std::uint64_t, 3> sizes;  // none is 0
  std::array<std::uint32_t, 3> box;    // box[0] elements take 128 bytes
  bool is_float = false;               // otherwise bf16
  std::uint64_t row_stride = 0;        // in elements, between rows of sizes[0] elements; 0: rows are contiguous
};

// The driver's cuTensorMapEncodeTiled, looked up at run time because this library does not link the driver.
[[nodiscard]] inline auto tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status);
    D9D_CHECK(
        status == cudaDriverEntryPointSuccess && function != nullptr, StateError,
        "[kernels::tensor_map] expected a driver with cuTensorMapEncodeTiled, got none. Install a driver for CUDA "
        "12 or newer.");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

// The calling thread must have used the device before, because the driver needs a current context.
[[nodiscard]] inline CUtensorMap tensor_map(const TiledTensor& tensor) {
  const std::uint64_t row = (tensor.is_float ? 4 : 2) * (tensor.row_stride == 0 ? tensor.sizes[0] : tensor.row_stride);
  const std::array<std::uint64_t, 2> strides = {row, row * tensor.sizes[1]};
  const std::array<std::uint32_t, 3> element_strides = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      tensor_map_encoder()(&map, tensor.is_float ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                           3, const_cast<void*>(tensor.data), tensor.sizes.data(), strides.data(), tensor.box.data(),
                           element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  D9D_CHECK(result == CUDA_SUCCESS, StateError, "[kernels::tensor_map] expected the driver to take a tensor of ",
            tensor.sizes[2], " x ", tensor.sizes[1], " x ", tensor.sizes[0], ", got its error ",
            static_cast<int>(result), ". Align it to 16 bytes, rows too.");
  return map;
}

}  // namespace d9d::kernels::detail
