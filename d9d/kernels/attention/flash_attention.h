// FlashAttention-2 as LibTorch ships it: bf16 and half on GPUs of compute capability 8 and later. No softcap.
#pragma once

#include "d9d/kernels/attention/fused_call.h"

namespace d9d::kernels::detail {

[[nodiscard]] FusedForward flash_forward(const FusedTensors& tensors, const FusedCall& call);

// `forward` may be a result of add_sinks() (sinks.h), whose logsumexp includes the sinks.
[[nodiscard]] FusedGradients flash_backward(const at::Tensor& grad_out, const FusedTensors& tensors,
                                            const FusedForward& forward, const FusedCall& call);

// The same backward with an additional gradient of the logsumexp, [B, Hq, S].
[[nodiscard]] FusedGradients flash_backward_with_logsumexp(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                                           const FusedTensors& tensors, const FusedForward& forward,
                                                           const FusedCall& call);

}  // namespace d9d::kernels::detail
