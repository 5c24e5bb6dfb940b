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
  const auto make = reinterpret_cast<MakeNcclGroup>(cuda_library_symbol("d9d_make_nccl_group"));
  return [make, device](const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options) {
    ProcessGroup result;
    make(result, store, options, device);
    return result;
  };
}

}  // namespace d9d
