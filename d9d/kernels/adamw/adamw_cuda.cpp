#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/adamw/adamw_impl.h"
#include "d9d/kernels/adamw/adamw_kernel.h"
#include "d9d/kernels/common/cuda_kernels.h"

namespace d9d::kernels::detail {
namespace {

using Launch = std::pair<AdamWVariant, std::int64_t>;  // variant and step

bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
}

AdamWVariant variant_of(const AdamWTensors& tensors) {
  AdamWVariant variant{.parameter = dtype_of(tensors.parameter),
                       .grad = dtype_of(tensors.grad),
                       .moments = dtype_of(tensors.exp_avg),
                       .rounds_stochastically = tensors.rounding.has_value()};
  if (tensors.rounding) variant.layout = noise_layout(tensors.rounding->rows, adamw_pack_size(variant));
  return variant;
}

AdamWNumbers numbers_of(const AdamWOptions& options, const AdamWTensors& tensors, const at::Tensor& grad_scale) {
  const AdamWFactors factors = adamw_factors(options, tensors.step);
  const bool on_device = grad_scale.is_cuda();
  return {.parameter_decay = static_cast<float>(factors.parameter_decay),
          .gradient_decay = static_cast<float>(factors.gradient_decay),
          .weight1 = static_cast<float>(1 - factors.beta1),
          .beta2 = static_cast<float>(factors.beta2),
          .weight2 = static_cast<float>(1 - factors.beta2),
          .step_size = static_cast<float>(factors.step_size),
          .inverse_correction2 = static_cast<float>(1 / factors.bias_correction2_sqrt),
          .eps = static_cast<float>(factors.eps),
          .grad_factor = (options.maximize ? -1.0 : 1.0) * (on_device ? 1.0 : grad_scale.item<double>()),
          .grad_scale = on_device ? grad_scale.const_data_ptr<double>() : nullptr,
          .rounding_step = tensors.rounding ? rounding_stream(tensors).step : 0};
}

AdamWPointers pointers_of(const AdamWTensors& tensors) {
  const StochasticRounding rounding = tensors.rounding.value_or(StochasticRounding());
  return {.parameter = tensors.parameter.mutable_data_ptr(),
          .grad = tensors.grad.const_data_ptr(),
          .exp_avg = tensors.exp_avg.mutable_data_ptr(),
          .exp_avg_sq = tensors.exp_avg_sq.mutable_data_ptr(),
          .size = tensors.parameter.numel(),
          .rounding_key = rounding.key,
          .rows = rounding.rows};
}

}  // namespace

bool has_adamw_kernel(const AdamWTensors& tensors) {
  return has_cuda_kernels(tensors.parameter) && !tensors.max_exp_avg_sq.defined() && is_narrow(tensors.parameter) &&
         is_narrow(tensors.grad) && tensors.parameter.is_contiguous() && tensors.grad.is_contiguous() &&
         tensors.exp_avg.is_contiguous() && tensors.exp_avg_sq.is_contiguous();
}

void adamw_cuda(const std::vector<const AdamWTensors*>& tensors, const AdamWOptions& options,
                const at::Tensor& grad_scale) {
  const at::Device device = tensors.front()->parameter.device();
  const c10::DeviceGuard guard(device);
  const at::Tensor scale = grad_scale.is_cuda() ? grad_scale.to(device, at::kDouble) : grad_scale;
  std::map<Launch, std::vector<const AdamWTensors*>> launches;
  for (const AdamWTensors* each : tensors)
    if (each->parameter.numel() > 0) launches[{variant_of(*each), each->step}].push_back(each);
  for (const auto& [launch, members] : launches) {
    const AdamWVariant& variant = launch.first;
    const std::int64_t chunk_size = adamw_chunk_size(variant);
    const auto args = std::make_unique<AdamWArgs>();
    args->numbers = numbers_of(options, *members.front(), scale);
    for (const AdamWTensors* member : members) {
      args->tensors[args->chunks.add(member->parameter.numel(), chunk_size)] = pointers_of(*member);
      if (!args->chunks.is_full() && member != members.back()) continue;
      launch_adamw(variant, *args, current_cuda_stream(device));
      args->chunks = {};
    }
    for (const AdamWTensors* member : members) {
      for (const at::Tensor& written : {member->parameter, member->exp_avg, member->exp_avg_sq})
        written.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace d9d::kernels::detail
