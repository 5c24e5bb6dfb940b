// Attention by cuDNN's graphs (cudnn_graph.h) on GPU tensors, for bf16 and half on Hopper. Each new combination of
// shapes and options needs a plan, whose making takes up to some tenths of a second. The lengths of packed sequences
// change with every batch, so their plans are made for the number of sequences, the longest length and the sum of
// lengths, each rounded up to a power of two.
#pragma once

#include <optional>
#include <string>

#include "d9d/kernels/attention/fused_call.h"

namespace d9d::kernels::detail {

// The reason why cuDNN cannot compute the call; null if it can.
[[nodiscard]] const char* cudnn_refusal(const FusedTensors& tensors, const FusedCall& call, bool has_sinks);

// sinks: [Hq], or undefined. With backward_follows a background thread makes the plan of the backward pass meanwhile.
// Throws StateError with cuDNN's reason if cuDNN makes no plan.
[[nodiscard]] FusedForward cudnn_forward(const FusedTensors& tensors, const at::Tensor& sinks, const FusedCall& call,
                                         bool backward_follows);

// Sinks need no argument, because forward.logsumexp includes them. The gradients are not bitwise reproducible. If the
// rows of dense values are preceded by as many columns as queries and keys have together, so are the rows of their
// gradient, in a storage of its own (column_slices.h); all other gradients are contiguous.
[[nodiscard]] FusedGradients cudnn_backward(const at::Tensor& grad_out, const FusedTensors& tensors,
                                            const FusedForward& forward, const FusedCall& call);

}  // namespace d9d::kernels::detail
