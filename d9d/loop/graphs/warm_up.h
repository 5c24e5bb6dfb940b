// Initialises a GPU's libraries on a thread, while the host builds the model.
//
// Example
//   const std::jthread warm_up = start_warm_up(context.device());   // ends by itself
#pragma once

#include <thread>

#include <c10/core/Device.h>

namespace d9d {

// On a CUDA device, computes a small matrix product in bfloat16, forward and backward. This creates the cuBLAS handle,
// loads its kernels, and starts autograd's thread for the device. On other devices, does nothing. Ignores errors, which
// the first step would meet again.
[[nodiscard]] std::jthread start_warm_up(c10::Device device);

}  // namespace d9d
