#include "d9d/core/device/start_cudnn.h"

#include <cuda_runtime_api.h>

#include <exception>

#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_runtime.h"

namespace d9d {

std::jthread start_cudnn(c10::Device device) {
  if (!device.is_cuda() || !is_hopper(device)) return {};
  try {
    // The symbol is looked up before the thread starts: while another thread loads LibTorch's CUDA half, the dynamic
    // linker is locked, and this one can already create the device's context.
    const auto start = reinterpret_cast<void (*)(int)>(cudnn_library_symbol("d9d_start_cudnn"));
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess) return {};  // makes the runtime initialise the driver
    return std::jthread(start, device.index());
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace d9d
