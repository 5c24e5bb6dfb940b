// Loads the CUDA half of LibTorch when a device is first needed.
//
// Example
//   const at::Device device = load_cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
//
// Programs link libtorch_cpu only: linking libtorch_cuda and its dependencies (cuDNN, cuBLAS, NCCL: more than 1 GB)
// makes every start 0.1 s slower, even on machines without a GPU. Loading it later registers the same operators and
// devices.
#pragma once

#include <string>

#include <c10/core/Device.h>

namespace d9d {

// Local. Returns true if this process sees a CUDA device, which LibTorch can then use. The first such call loads the
// library; later calls, from any thread, return the same answer. On a machine without a device nothing is loaded.
//
// Call it before the first backward and before any code asks LibTorch about CUDA (at::hasCUDA, pinned memory):
// LibTorch keeps its first answer for ever. Throws StateError if the call came too late, or if the driver is too old
// for the library; IoError if the driver or the library does not start.
bool load_cuda();

// Number of CUDA devices that this process may use. Asks the driver and loads nothing else. Throws IoError if the
// driver does not start.
[[nodiscard]] int num_cuda_devices();

// The major compute capability of a CUDA device, 9 on Hopper. Asks the driver once for each device. Requires an
// earlier call of num_cuda_devices().
[[nodiscard]] int cuda_capability_major(c10::Device device);
// Whether the kernels of this library, which are compiled for sm_90a, run on the device. Requires an earlier call of
// num_cuda_devices().
[[nodiscard]] bool is_hopper(c10::Device device);

// The name of a CUDA device, "NVIDIA H100 80GB HBM3". Asks the driver. Requires an earlier call of num_cuda_devices().
[[nodiscard]] std::string cuda_device_name(c10::Device device);

}  // namespace d9d
