// Starts cuDNN on threads, while the program loads LibTorch's CUDA half.
//
// Example
//   const std::jthread cudnn = start_cudnn(device);   // ends by itself
//   load_cuda();
#pragma once

#include <thread>

#include <c10/core/Device.h>

namespace d9d {

// On a CUDA device that this library has kernels for, in threads: creates the device's context and lets cuDNN compile
// attention (causal, bf16, 128 features a head), forward and backward. This takes about 1.5 s in the first process on a
// machine and some tenths of a second in later ones, because the driver caches compiled kernels in ~/.nv. It needs the
// driver (num_cuda_devices()) but not LibTorch's CUDA half, which can be loaded in parallel. Launches no kernels. On
// other devices it does nothing. Errors are ignored; the first use of cuDNN meets them again.
[[nodiscard]] std::jthread start_cudnn(c10::Device device);

// The type of the symbol "d9d_start_cudnn" that libd9d_cudnn.so exports; `thread` is set unless CUDA refuses.
using StartCudnn = void (*)(int device, std::jthread& thread);

}  // namespace d9d
