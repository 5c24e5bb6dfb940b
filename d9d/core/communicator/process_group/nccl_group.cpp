#include "d9d/core/communicator/process_group/nccl_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_runtime.h"

namespace d9d {

MakeProcessGroup nccl_groups(c10::Device device) {
  D9D_CHECK(load_cuda(), ConfigError,
            "[core::nccl] expected a CUDA device, got none. Use launch.device=cpu: its ranks communicate by Gloo.");
  D9D_CHECK(is_built_with_cuda(), ConfigError,
            "[core::nccl] expected a build with CUDA, got one without: nvcc was not found. Build with it, or use "
            "launch.device=cpu.");
  return [device](const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options) {
    ProcessGroup result;
    make_nccl_group(result, store, options, device);
    return result;
  };
}

}  // namespace d9d
