// What a .cu file needs to launch its kernels, in addition to core's cuda_launch.cuh: programmatic dependent launch
// (PDL), which hides the microsecond of launch latency, and the error check after a launch.
//
// Example
//   __global__ void silu_mul_forward(SiluMulForwardArgs args) {
//     pdl_wait_and_trigger();
//     ...
//   }
//   with_element_type(args.dtype, [&]<class T>(Element<T>) {
//     launch_pdl(silu_mul_forward<T>, {num_blocks(args.size, kBlock * kWidth<T>), kBlock}, stream, args);
//   });
//   check_launch("silu_mul");
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_launch.cuh"
#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {

using d9d::detail::Element;
using d9d::detail::num_blocks;
using d9d::detail::with_element_type;

struct Grid {
  unsigned num_blocks = 0;
  unsigned block = 0;         // threads
  unsigned shared_bytes = 0;  // dynamic shared memory of a block
};

// Every thread of a kernel launched by launch_pdl() calls this before it reads or writes global memory. The call waits
// until the previous kernel of the stream has ended and its writes are visible. From then on blocks of the next kernel
// may start on resources that finished blocks of this kernel free.
__device__ __forceinline__ void pdl_wait_and_trigger() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
}

// Launches a kernel that calls pdl_wait_and_trigger(). Its blocks may start before the previous kernel of the stream
// has ended.
template <class... Args>
void launch_pdl(void (*kernel)(Args...), const Grid& grid, CUstream_st* stream,
                const std::type_identity_t<Args>&... args) {
  constexpr unsigned kWithoutAsking = 32 * 1024;  // leaves 16 of the default 48 KiB to static shared memory
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
