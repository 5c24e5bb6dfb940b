// What the host half of a .cu file needs beside core's cuda_launch.cuh: launches behind others, alignment, and the
// check after a launch.
//
// Example
//   with_element_type(args.dtype, [&]<class T>(Element<T>) {
//     launch_after(silu_mul_forward<T>, {num_blocks(args.size, kBlock * kWidth<T>), kBlock}, stream, args);
//   });
//   check_launch("silu_mul");
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_launch.cuh"
#include "d9d/kernels/device/strided_rows.h"

namespace d9d::kernels::detail {

using d9d::detail::Element;
using d9d::detail::num_blocks;
using d9d::detail::with_element_type;

// Whether rows of `num_columns` elements of `element_size` bytes that begin at `data` can be moved 16 bytes at a time.
[[nodiscard]] inline bool is_aligned(const void* data, const StridedRows& rows, std::int64_t num_columns,
                                     std::int64_t element_size) {
  const std::int64_t strides = num_columns | rows.inner_stride | rows.outer_stride;
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(strides * element_size)) % 16 == 0;
}

struct Grid {
  unsigned num_blocks = 0;
  unsigned block = 0;         // threads
  unsigned shared_bytes = 0;  // asked for at the launch, a block
};

// Starts a kernel whose first act is wait_for_kernel_before() while the one before it in the stream still ends, which
// hides a microsecond of each start.
template <class... Args>
void launch_after(void (*kernel)(Args...), const Grid& grid, CUstream_st* stream,
                  const std::type_identity_t<Args>&... args) {
  constexpr unsigned kWithoutAsking = 32 * 1024;  // of 48 KiB, which are also the kernel's own variables'
  if (grid.shared_bytes > kWithoutAsking) {
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(grid.shared_bytes));
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.num_blocks);
  config.blockDim = dim3(grid.block);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const void* pointers[] = {&args...};
  cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), const_cast<void**>(pointers));
}

inline void check_launch(const char* op) { d9d::detail::check_launch("kernels", op); }

}  // namespace d9d::kernels::detail
