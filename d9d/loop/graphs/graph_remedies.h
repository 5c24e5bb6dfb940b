// Replaces the errors of failed CUDA graph captures by errors that tell the user what to change.
//
// Example
//   StepGraphs graphs(config, with_remedies(cuda_graphs(device)), device, module);
#pragma once

#include "d9d/core/device/device_graph.h"

namespace d9d::detail {

// Wraps a factory of graphs: capture() of its graphs throws a StateError with a remedy instead of LibTorch's
// c10::Error.
[[nodiscard]] MakeDeviceGraph with_remedies(MakeDeviceGraph make_graph);

}  // namespace d9d::detail
