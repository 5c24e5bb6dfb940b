// Returns host memory that the process has freed to the system.
//
// Example
//   if (schedule.should_do_action(config.gc.period_steps)) return_freed_memory(context.device());
#pragma once

#include <c10/core/Device.h>

namespace d9d {

// Local. Returns what malloc keeps of freed memory and, if the device is a CUDA device, what LibTorch's allocator keeps
// of freed pinned tensors, unless a copy of them is still running. Unlocking pinned pages may wait for the device.
void return_freed_memory(c10::Device device);

}  // namespace d9d
