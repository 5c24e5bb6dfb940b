#include "d9d/base/check.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/device_graph.h"
#include "d9d/core/device/start_cudnn.h"

namespace d9d {

MakeDeviceGraph cuda_graphs(c10::Device device) {
  throw ConfigError(cat("[core::device_graph] expected a build with nvcc for graphs of ", device.str(),
                        ", got one without. Configure with -DD9D_CUDA=ON."));
}

bool is_built_with_cuda() { return false; }

void* cuda_library_symbol(const char* name) {
  throw ConfigError(cat("[core::cuda_library] expected a build with nvcc for ", name,
                        ", got one without. Configure with -DD9D_CUDA=ON."));
}

void* cudnn_library_symbol(const char* name) { return cuda_library_symbol(name); }

std::jthread start_cudnn(c10::Device /*device*/) { return {}; }

}  // namespace d9d
