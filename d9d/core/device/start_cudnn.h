// cuDNN, started beside LibTorch.
//
// Example
//   const std::jthread cudnn = start_cudnn(device);   // ends by itself
//   load_cuda();
#pragma once

#include <thread>

#include <c10/core/Device.h>

namespace d9d {

// On a CUDA device that this library has kernels for, in threads: makes the device's context, and has cuDNN compile
// attention, causal in bf16 with 128 features a head, forward and backward. In all processes but the first of a machine
// that takes some tenths of a second, in the first one and a half: the driver keeps compiled kernels in ~/.nv. It needs
// the driver (num_cuda_devices()), not LibTorch's CUDA half, which is loaded meanwhile. Gives the device no work.
// Nothing elsewhere. What fails here is left to fail where it is needed.
[[nodiscard]] std::jthread start_cudnn(c10::Device device);

}  // namespace d9d
