#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/momentum/momentum_impl.h"
#include "d9d/kernels/momentum/momentum_kernel.h"

namespace d9d::kernels::detail {
namespace {

bool is_float_or_bfloat16(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
}

MomentumVariant variant_of(const MomentumTensors& tensors) {
  return {
      .parameter = dtype_of(tensors.parameter), .grad = dtype_of(tensors.grad), .has_buffer = tensors.buffer.defined()};
}

MomentumNumbers numbers_of(const MomentumFactors& factors, const at::Tensor& grad_scale) {
  const bool on_device = grad_scale.is_cuda();
  return {.gradient_decay = static_cast<float>(factors.gradient_decay),
          .buffer_decay = static_cast<float>(factors.buffer_decay),
          .buffer_grad = static_cast<float>(factors.buffer_grad),
          .update_buffer = static_cast<float>(factors.update_buffer),
          .update_grad = static_cast<float>(factors.update_grad),
          .parameter_decay = static_cast<float>(factors.parameter_decay),
          .step_size = static_cast<float>(factors.step_size),
          .takes_sign = factors.takes_sign,
          .grad_factor = (factors.maximize ? -1.0 : 1.0) * (on_device ? 1.0 : grad_scale.item<double>()),
          .grad_scale = on_device ? grad_scale.const_data_ptr<double>() : nullptr};
}

MomentumPointers pointers_of(const MomentumTensors& tensors) {
  return {.parameter = tensors.parameter.mutable_data_ptr(),
          .grad = tensors.grad.const_data_ptr(),
          .buffer = tensors.buffer.defined() ? tensors.buffer.mutable_data_ptr<float>() : nullptr,
          .size = tensors.parameter.numel()};
}

}  // namespace

bool has_momentum_kernel(const MomentumTensors& tensors) {
  return has_cuda_kernels(tensors.parameter) && is_float_or_bfloat16(tensors.parameter) &&
         is_float_or_bfloat16(tensors.grad) && tensors.parameter.is_contiguous() && tensors.grad.is_contiguous() &&
         (!tensors.buffer.defined() || tensors.buffer.is_contiguous());
}

void momentum_cuda(const std::vector<const MomentumTensors*>& tensors, const MomentumFactors& factors,
                   const at::Tensor& grad_scale) {
  const at::Device device = tensors.front()->parameter.device();
  const c10::DeviceGuard guard(device);
  const at::Tensor scale = grad_scale.is_cuda() ? grad_scale.to(device, at::kDouble) : grad_scale;
  std::map<MomentumVariant, std::vector<const MomentumTensors*>> launches;
  for (const MomentumTensors* each : tensors)
    if (each->parameter.numel() > 0) launches[variant_of(*each)].push_back(each);
  for (const auto& [variant, members] : launches) {
    const auto args = std::make_unique<MomentumArgs>();
    args->numbers = numbers_of(factors, scale);
    for (const MomentumTensors* member : members) {
      args->tensors[args->chunks.add(member->parameter.numel(), kMomentumChunk)] = pointers_of(*member);
      if (!args->chunks.is_full() && member != members.back()) continue;
      launch_momentum(variant, *args, current_cuda_stream(device));
      args->chunks = {};
    }
    for (const MomentumTensors* member : members) {
      for (const at::Tensor& written : {member->parameter, member->buffer})
        if (written.defined()) written.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace d9d::kernels::detail
