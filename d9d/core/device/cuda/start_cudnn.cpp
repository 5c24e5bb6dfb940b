#include "d9d/core/device/start_cudnn.h"

#include <cuda_runtime_api.h>

#include <exception>

#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_runtime.h"

namespace d9d {

std::jthread start_cudnn(c10::Device device) {
  if (!device.is_cuda() || !is_hopper(device)) return {};
  try {
    // Before the thread starts: while LibTorch's CUDA half occupies the linker, the thread can make the context.
    const auto start = reinterpret_cast<void (*)(int)>(cudnn_library_symbol("d9d_start_cudnn"));
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess) return {};  // the runtime opens the driver
    return std::jthread(start, device.index());
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace d9d
