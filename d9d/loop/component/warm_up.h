// What a GPU's libraries do once in a process, done while the host builds the model.
//
// Example
//   const std::jthread warm_up = start_warm_up(context.device());   // ends by itself
#pragma once

#include <thread>

#include <c10/core/Device.h>

namespace d9d {

// On a CUDA device a small matrix product, forward and backward, in bfloat16: makes the handle of cuBLAS, loads its
// kernels, and starts autograd's thread of the device. Nothing elsewhere. What fails here is left to fail where it is
// needed.
[[nodiscard]] std::jthread start_warm_up(c10::Device device);

}  // namespace d9d
