// Helpers of the host half of every .cu file: the number of blocks, the element type of a Dtype, and the check after a
// launch.
//
// Example
//   with_element_type(args.dtype, [&]<class T>(Element<T>) {
//     fill<T><<<num_blocks(args.numel, kBlock), kBlock, 0, stream>>>(args);
//   });
//   check_launch("core", "element_random");
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "d9d/base/check.h"
#include "d9d/base/dtype.h"

namespace d9d::detail {

// A type as a value.
template <class T>
struct Element {
  using Type = T;
};

template <class Function>
void with_element_type(Dtype dtype, const Function& function) {
  switch (dtype) {
    case Dtype::kFloat64:
      return function(Element<double>());
    case Dtype::kFloat32:
      return function(Element<float>());
    case Dtype::kBFloat16:
      return function(Element<__nv_bfloat16>());
    case Dtype::kFloat16:
      return function(Element<__half>());
  }
}

// Number of blocks that cover `size` elements, with `per_block` elements each.
[[nodiscard]] inline unsigned num_blocks(std::int64_t size, std::int64_t per_block) {
  return static_cast<unsigned>((size + per_block - 1) / per_block);
}

// Throws StateError with the name of the operator if its kernel did not start.
inline void check_launch(const char* area, const char* op) {
  const cudaError_t error = cudaGetLastError();
  D9D_CHECK(error == cudaSuccess, StateError, "[", area, "::", op, "] expected its kernel to start, got CUDA's error '",
            cudaGetErrorString(error), "'. An earlier operation may have failed: run with CUDA_LAUNCH_BLOCKING=1.");
}

}  // namespace d9d::detail
