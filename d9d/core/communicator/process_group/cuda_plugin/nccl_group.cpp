// Part of libd9d_cuda.so, which may name symbols of the CUDA half of LibTorch.
#include "d9d/core/communicator/process_group/nccl_group.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" __attribute__((visibility("default"))) void d9d_make_nccl_group(d9d::ProcessGroup& result,
                                                                           const c10::intrusive_ptr<c10d::Store>& store,
                                                                           const d9d::ProcessGroupOptions& options,
                                                                           c10::Device device) {
  c10::cuda::set_device(device.index());
  const auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  nccl->group_name = options.name;
  nccl->global_ranks_in_group.assign(options.ranks.begin(), options.ranks.end());
  const auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(options.index),
                                                                 static_cast<int>(options.ranks.size()), nccl);
  result.backend = group;
  result.interrupt = [group] { group->abort(); };
}
