#include "d9d/kernels/stochastic/copy_stochastic.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/stochastic/copy_stochastic_impl.h"
#include "d9d/kernels/stochastic/copy_stochastic_kernel.h"

namespace d9d::kernels {
namespace detail {

void copy_stochastic_cuda(const StochasticCopy& copy) {
  const c10::DeviceGuard guard(copy.target.device());
  launch_copy_stochastic({.target = copy.target.mutable_data_ptr(),
                          .source = copy.source.const_data_ptr<float>(),
                          .size = copy.target.numel(),
                          .stream = copy.stream,
                          .rows = copy.rows},
                         current_cuda_stream(copy.target.device()));
  copy.target.unsafeGetTensorImpl()->bump_version();
}

}  // namespace detail

void copy_fp32_to_bf16_stochastic_(const at::Tensor& target, const at::Tensor& source, RandomStream stream,
                                   const ElementRows& rows) {
  D9D_CHECK(target.scalar_type() == at::kBFloat16 && source.scalar_type() == at::kFloat, ConfigError,
            "[kernels::copy_stochastic] expected a bfloat16 target and a float32 source, got ", target.scalar_type(),
            " and ", source.scalar_type(), ". Convert the source.");
  D9D_CHECK(target.sizes() == source.sizes() && target.device() == source.device(), ConfigError,
            "[kernels::copy_stochastic] expected tensors of one shape and device, got ", target.sizes(), " on ",
            target.device(), " and ", source.sizes(), " on ", source.device(), ". Make them agree.");
  D9D_CHECK(target.is_contiguous(), ConfigError,
            "[kernels::copy_stochastic] expected a contiguous target, got strides ", target.strides(),
            ". Copy into a contiguous tensor first.");
  if (target.numel() == 0) return;
  const detail::StochasticCopy copy{.target = target, .source = source.contiguous(), .stream = stream, .rows = rows};
  if (target.is_cpu()) return detail::copy_stochastic_cpu(copy);
  if (detail::has_cuda_kernels(target)) return detail::copy_stochastic_cuda(copy);
  detail::copy_stochastic_aten(copy);
}

}  // namespace d9d::kernels
