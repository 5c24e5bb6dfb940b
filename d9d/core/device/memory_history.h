// What the allocators of CUDA devices do while it is recorded: each allocation and release with its stack, and what is
// allocated at the end. Of the process, hence of all its devices and threads.
//
// Example
//   begin_memory_history();
//   ...
//   std::string snapshot;
//   end_memory_history(snapshot);       // the content of a file that https://pytorch.org/memory_viz opens
#pragma once

#include <string>

#include "d9d/core/device/cuda_function.h"

namespace d9d {

// Drops what was recorded before. Requires load_cuda(). Both functions throw as cuda_library_symbol() does.
extern "C" void d9d_begin_memory_history();
inline constexpr CudaFunction<"d9d_begin_memory_history", decltype(d9d_begin_memory_history)> begin_memory_history;

// Ends the recording. Writes to `snapshot` a pickle of what torch.cuda.memory._snapshot() returns in Python.
extern "C" void d9d_end_memory_history(std::string& snapshot);
inline constexpr CudaFunction<"d9d_end_memory_history", decltype(d9d_end_memory_history)> end_memory_history;

}  // namespace d9d
