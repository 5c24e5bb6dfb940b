// FlashAttention-2 as LibTorch ships it: bf16 and half on GPUs of compute capability 8 and later. No softcap.
#pragma once

#include "d9d/kernels/attention/fused_call.h"

namespace d9d::kernels::detail {

[[nodiscard]] FusedForward flash_forward(const FusedTensors& tensors, const FusedCall& call);

// forward.logsumexp may hold sinks, and forward.out what is left to the values then.
[[nodiscard]] FusedGradients flash_backward(const at::Tensor& grad_out, const FusedTensors& tensors,
                                            const FusedForward& forward, const FusedCall& call);

// As above, with a gradient of logsumexp [B, Hq, S] too.
[[nodiscard]] FusedGradients flash_backward_with_logsumexp(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                                           const FusedTensors& tensors, const FusedForward& forward,
                                                           const FusedCall& call);

}  // namespace d9d::kernels::detail
