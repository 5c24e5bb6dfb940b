// NCCL: collectives of CUDA tensors. The code is in libd9d_cuda.so, which needs the CUDA half of LibTorch and is loaded
// when a device is present (docs/decisions/0002-load-cuda-late.md).
#pragma once

#include <c10/core/Device.h>

#include "d9d/core/communicator/process_group/process_group.h"
#include "d9d/core/device/cuda_function.h"

namespace d9d {

// `device`: the device of this rank, with its index. Throws ConfigError without a device, or in a build without CUDA;
// its result throws IoError if the library is not found.
[[nodiscard]] MakeProcessGroup nccl_groups(c10::Device device);

extern "C" void d9d_make_nccl_group(ProcessGroup& result, const c10::intrusive_ptr<c10d::Store>& store,
                                    const ProcessGroupOptions& options, c10::Device device);
inline constexpr CudaFunction<"d9d_make_nccl_group", decltype(d9d_make_nccl_group)> make_nccl_group;

}  // namespace d9d
