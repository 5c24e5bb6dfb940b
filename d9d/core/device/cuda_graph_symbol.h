// What libd9d_cuda.so exports for graphs: "d9d_make_cuda_graphs", of this type.
#pragma once

#include "d9d/core/device/device_graph.h"

namespace d9d {

using MakeCudaGraphs = void (*)(MakeDeviceGraph& result, c10::Device device);

}  // namespace d9d
