#include "d9d/core/device/start_cudnn.h"

#include <exception>

#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_runtime.h"

namespace d9d {

std::jthread start_cudnn(c10::Device device) {
  if (!device.is_cuda() || !is_built_with_cuda() || !is_hopper(device)) return {};
  std::jthread thread;
  try {
    // The library is opened before the thread starts: while another thread loads LibTorch's CUDA half, the dynamic
    // linker is locked, and this one can already create the device's context.
    reinterpret_cast<StartCudnn>(cudnn_library_symbol("d9d_start_cudnn"))(device.index(), thread);
  } catch (const std::exception&) {
  }
  return thread;
}

}  // namespace d9d
