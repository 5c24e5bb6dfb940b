// What a process does once before attention runs on a GPU.
//
// Example
//   prepare_attention(at::Device(at::kCUDA, 0));   // in a thread beside the program's start
#pragma once

#include <c10/core/Device.h>

namespace d9d::kernels {

// Where cuDNN's graphs compute attention: starts cuDNN and compiles its kernels, forward and backward beside each
// other, for causal attention in bf16 with 128 features a head. In all processes but the first of a machine that takes
// a tenth of a second, in the first a second: the driver keeps compiled kernels in ~/.nv. Nothing elsewhere. Waits;
// gives the device no work. Throws only where LibTorch or the library does; a kernel that cannot be compiled fails
// where it is used.
void prepare_attention(c10::Device device);

}  // namespace d9d::kernels
