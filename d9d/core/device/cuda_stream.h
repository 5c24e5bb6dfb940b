// The stream that LibTorch's operators use now, for launching kernels of our own on it.
//
// Example
//   detail::launch_silu_mul_forward(args, current_cuda_stream(gate.device()));
#pragma once

#include <c10/core/Device.h>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace d9d {

// The calling thread's current stream of a CUDA device; LibTorch owns it. load_cuda() has returned true.
[[nodiscard]] CUstream_st* current_cuda_stream(c10::Device device);

}  // namespace d9d
