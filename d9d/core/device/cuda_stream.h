// LibTorch's current CUDA stream, on which this library launches its own kernels.
//
// Example
//   detail::launch_silu_mul_forward(args, current_cuda_stream(gate.device()));
#pragma once

#include <c10/core/Device.h>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace d9d {

// The calling thread's current stream of a CUDA device, owned by LibTorch. Requires that load_cuda() has returned true.
[[nodiscard]] CUstream_st* current_cuda_stream(c10::Device device);

}  // namespace d9d
