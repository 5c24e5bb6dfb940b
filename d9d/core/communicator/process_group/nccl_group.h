// NCCL: collectives of CUDA tensors. The code is in libd9d_cuda.so, which needs the CUDA half of LibTorch and is loaded
// when a device is present (docs/decisions/0002-load-cuda-late.md).
#pragma once

#include <c10/core/Device.h>

#include "d9d/core/communicator/process_group/process_group.h"

namespace d9d {

// `device`: the device of this rank, with its index. Throws ConfigError without a device, or in a build without CUDA;
// IoError if the library is not found.
[[nodiscard]] MakeProcessGroup nccl_groups(c10::Device device);

// The type of the symbol "d9d_make_nccl_group" that the library exports.
using MakeNcclGroup = void (*)(ProcessGroup& result, const c10::intrusive_ptr<c10d::Store>& store,
                               const ProcessGroupOptions& options, c10::Device device);

}  // namespace d9d
