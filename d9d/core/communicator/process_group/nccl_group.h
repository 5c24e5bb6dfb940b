// NCCL: collectives of CUDA tensors. It lives in a library of its own, libd9d_cuda.so, which needs the CUDA half of
// LibTorch; that is loaded when a device is there (docs/decisions/0002-load-cuda-late.md).
#pragma once

#include <c10/core/Device.h>

#include "d9d/core/communicator/process_group/process_group.h"

namespace d9d {

// `device`: of this rank, with its index. Throws ConfigError without a device, or in a build without CUDA; IoError when
// the library is not found.
[[nodiscard]] MakeProcessGroup nccl_groups(c10::Device device);

// What the library exports, as "d9d_make_nccl_group".
using MakeNcclGroup = void (*)(ProcessGroup& result, const c10::intrusive_ptr<c10d::Store>& store,
                               const ProcessGroupOptions& options, c10::Device device);

}  // namespace d9d
