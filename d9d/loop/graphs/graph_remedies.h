// Errors of captures that say what a user can do.
//
// Example
//   StepGraphs graphs(config, with_remedies(cuda_graphs(device)), device, module);
#pragma once

#include "d9d/core/device/device_graph.h"

namespace d9d::detail {

// Wraps the graphs of a factory: capture() throws a StateError with a remedy in place of the error of LibTorch.
[[nodiscard]] MakeDeviceGraph with_remedies(MakeDeviceGraph make_graph);

}  // namespace d9d::detail
