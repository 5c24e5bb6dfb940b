#include "d9d/base/check.h"
#include "d9d/core/communicator/process_group/nccl_group.h"

namespace d9d {

MakeProcessGroup nccl_groups(c10::Device /*device*/) {
  throw ConfigError(
      "[core::nccl] expected a build with CUDA, got one without: nvcc was not found. Build with it, or use "
      "launch.device=cpu.");
}

}  // namespace d9d
