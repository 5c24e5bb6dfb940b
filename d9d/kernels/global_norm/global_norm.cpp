#include "d9d/kernels/global_norm/global_norm.h"

#include <algorithm>
#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/rounding.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/global_norm/global_norm_kernel.h"

namespace d9d::kernels::detail {

bool has_global_norm_kernel(at::TensorList tensors) {
  return !tensors.empty() && std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return has_cuda_kernels(tensor) && tensor.device() == tensors.front().device();
  });
}

at::Tensor global_norm_cuda(at::TensorList tensors, NormOrder order) {
  const at::NoGradGuard no_grad;
  const at::Device device = tensors.front().device();
  const c10::DeviceGuard guard(device);
  CUstream_st* const stream = current_cuda_stream(device);
  std::map<Dtype, std::vector<at::Tensor>> of_dtype;
  std::int64_t num_partial = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    of_dtype[dtype_of(tensor)].push_back(tensor.contiguous());
    num_partial += divide_up(tensor.numel(), kNormChunkSize);
  }
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kDouble);
  const at::Tensor partial = at::empty({num_partial}, options);
  const at::Tensor norm = at::empty({}, options);
  const auto args = std::make_unique<PowerSumArgs>();
  args->partial = partial.mutable_data_ptr<double>();
  for (const auto& [dtype, members] : of_dtype) {
    for (const at::Tensor& member : members) {
      const int index = args->chunks.add(member.numel(), kNormChunkSize);
      args->data[index] = member.const_data_ptr();
      args->size[index] = member.numel();
      if (!args->chunks.is_full() && !member.is_same(members.back())) continue;
      launch_power_sums(dtype, order, *args, stream);
      args->partial += args->chunks.num_chunks();
      args->chunks = {};
    }
  }
  launch_norm_of_power_sums(order, partial.const_data_ptr<double>(), num_partial, norm.mutable_data_ptr<double>(),
                            stream);
  return norm;
}

}  // namespace d9d::kernels::detail
