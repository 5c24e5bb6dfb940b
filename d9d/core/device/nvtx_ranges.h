// Ranges of NamedRange in tools that read NVTX, such as Nsight Systems: `nsys profile --trace=cuda,nvtx program`.
// load_cuda() calls this where such a tool has started the process.
#pragma once

#include "d9d/core/device/cuda_function.h"

namespace d9d {

// From now on each range of each thread of the process is also pushed to the tool. Throws as cuda_library_symbol()
// does. A second call changes nothing.
extern "C" void d9d_show_ranges_to_nvtx();
inline constexpr CudaFunction<"d9d_show_ranges_to_nvtx", decltype(d9d_show_ranges_to_nvtx)> show_ranges_to_nvtx;

}  // namespace d9d
