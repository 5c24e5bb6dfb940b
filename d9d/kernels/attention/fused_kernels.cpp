#include "d9d/kernels/attention/fused_kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/attention_parts.h"
#include "d9d/kernels/common/row_tensor.h"
#include "d9d/kernels/range_sum/range_sum.h"

namespace d9d::kernels::detail {
namespace {

// The tensors as the kernel reads them: only cuDNN takes strides, of dense sequences.
FusedTensors tensors_for(FusedSdpaKernel kernel, const FusedTensors& tensors) {
  if (kernel == FusedSdpaKernel::kCudnn && !tensors.cu_seqlens.defined()) return tensors;
  FusedTensors result = tensors;
  for (at::Tensor* x : {&result.query, &result.key, &result.value}) *x = readable(*x);
  return result;
}

}  // namespace

std::optional<FusedSdpaKernel> kernel_for(const FusedTensors& tensors, const FusedCall& call, bool has_sinks,
                                          FusedSdpaKernel wanted) {
  if (wanted == FusedSdpaKernel::kCudnn && cudnn_refusal(tensors, call, has_sinks) == nullptr) return wanted;
  if (flash_refusal(tensors, call) != nullptr) return std::nullopt;
  return FusedSdpaKernel::kFlash;
}

at::Tensor readable(const at::Tensor& x) {
  if (x.is_contiguous() && is_aligned(x)) return x;
  if (x.requires_grad() && at::GradMode::is_enabled()) return x.clone(at::MemoryFormat::Contiguous);
  const at::Tensor copy = at::empty(x.sizes(), x.options());
  sum_ranges(copy, {{.values = x}});
  return copy;
}

FusedForward fused_forward(const FusedTensors& tensors, const at::Tensor& sinks, const FusedCall& call,
                           FusedSdpaKernel kernel, bool backward_follows) {
  const auto of_part = [&](const FusedTensors& part, const at::Tensor& sinks_of_part) {
    const FusedTensors own = tensors_for(kernel, part);
    if (kernel == FusedSdpaKernel::kCudnn) return cudnn_forward(own, sinks_of_part, call, backward_follows);
    FusedForward result = flash_forward(own, call);
    if (sinks_of_part.defined()) add_sinks(result, sinks_of_part);
    return result;
  };
  return forward_in_parts(tensors, sinks,
                          attention_parts(AttentionSizes::of(tensors, /*is_backward=*/false), kMaxElements), of_part);
}

FusedGradients fused_backward(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp, const FusedTensors& tensors,
                              const FusedForward& forward, const FusedCall& call, FusedSdpaKernel kernel) {
  AttentionSizes sizes = AttentionSizes::of(tensors, /*is_backward=*/true);
  if (grad_logsumexp.defined()) {
    const char* const refusal = flash_refusal(tensors, call);
    D9D_CHECK(refusal == nullptr, ConfigError,
              "[kernels::fused_attention] expected no gradient of the logsumexp where FlashAttention-2, which computes "
              "it, ",
              refusal, ", got one. Use eager_attention.");
    sizes.num_features += kMoreFeatures;
    kernel = FusedSdpaKernel::kFlash;
  }
  const auto of_part = [&](const FusedTensors& part, const BackwardInputs& inputs) {
    const FusedTensors own = tensors_for(kernel, part);
    if (kernel == FusedSdpaKernel::kCudnn) return cudnn_backward(inputs.grad_out, own, inputs.forward, call);
    const FusedForward result{.out = readable(inputs.forward.out), .logsumexp = inputs.forward.logsumexp.contiguous()};
    const at::Tensor grad = readable(inputs.grad_out);
    if (!inputs.grad_logsumexp.defined()) return flash_backward(grad, own, result, call);
    return flash_backward_with_logsumexp(grad, inputs.grad_logsumexp, own, result, call);
  };
  return backward_in_parts(tensors, {.forward = forward, .grad_out = grad_out, .grad_logsumexp = grad_logsumexp},
                           attention_parts(sizes, kMaxElements), of_part);
}

}  // namespace d9d::kernels::detail
