// The CUDA half of LibTorch, loaded when a device is asked for.
//
// Example
//   const at::Device device = load_cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
//
// Programs link libtorch_cpu alone: linking libtorch_cuda and what it needs (cuDNN, cuBLAS, NCCL: more than 1 GB) makes
// every start 0.1 s slower, also where no GPU is. Loading it later registers the same operators and devices.
#pragma once

#include <c10/core/Device.h>

namespace d9d {

// True when this process sees a CUDA device; LibTorch can then use it. Loads the library on the first such call; later
// calls, from any thread, return the same answer. On a machine without a device nothing is loaded. Local.
//
// Call it before the first backward and before anything asks LibTorch about CUDA (at::hasCUDA, pinned memory): LibTorch
// keeps its first answer for ever. Throws StateError when that was too late, or when the driver is too old for the
// library; IoError when the driver or the library does not start.
bool load_cuda();

// CUDA devices that this process may use; asks the driver and loads nothing. Throws IoError when the driver does not
// start.
[[nodiscard]] int num_cuda_devices();

// The major compute capability of a CUDA device, 9 on Hopper. Asks the driver once a device. num_cuda_devices() has
// been called.
[[nodiscard]] int cuda_capability_major(c10::Device device);
// Whether the kernels of this library, which are compiled for sm_90a, run there. As above.
[[nodiscard]] bool is_hopper(c10::Device device);

}  // namespace d9d
