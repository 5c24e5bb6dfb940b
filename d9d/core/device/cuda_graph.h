// CUDA graphs, without the checks of cuda_graphs() (device_graph.h).
#pragma once

#include "d9d/core/device/cuda_function.h"
#include "d9d/core/device/device_graph.h"

namespace d9d {

extern "C" void d9d_make_cuda_graphs(MakeDeviceGraph& result, c10::Device device);
inline constexpr CudaFunction<"d9d_make_cuda_graphs", decltype(d9d_make_cuda_graphs)> make_cuda_graphs;

}  // namespace d9d
