// One-time initialisation of a GPU's libraries, which runs while the host builds the model.
//
// Example
//   const std::jthread warm_up = start_warm_up(context.device());   // ends by itself
#pragma once

#include <thread>

#include <c10/core/Device.h>

namespace d9d {

// On a CUDA device: computes a small matrix product in bfloat16, forward and backward, which creates the cuBLAS
// handle, loads its kernels, and starts autograd's thread of the device. On other devices: does nothing. Errors are
// ignored here; they come up again in the first step.
[[nodiscard]] std::jthread start_warm_up(c10::Device device);

}  // namespace d9d
