// The type of the symbol "d9d_make_cuda_graphs", which libd9d_cuda.so exports for graphs.
#pragma once

#include "d9d/core/device/device_graph.h"

namespace d9d {

using MakeCudaGraphs = void (*)(MakeDeviceGraph& result, c10::Device device);

}  // namespace d9d
