// Attention by cuDNN's graphs (cudnn_graph.h) on tensors of a GPU: bf16 and half on Hopper. A plan is made for each new
// combination of shapes and options, in up to some tenths of a second; of packed sequences, whose lengths change with
// every batch, for their number, longest and sum rounded up to powers of two.
#pragma once

#include <optional>
#include <string>

#include "d9d/kernels/attention/fused_call.h"

namespace d9d::kernels::detail {

// Why cuDNN cannot compute the call; null if it can.
[[nodiscard]] const char* cudnn_refusal(const FusedTensors& tensors, const FusedCall& call, bool has_sinks);

// sinks: [Hq], or undefined. Where a backward follows, its plan is made in a thread of its own meanwhile. Throws
// StateError with cuDNN's reason when it makes no plan.
[[nodiscard]] FusedForward cudnn_forward(const FusedTensors& tensors, const at::Tensor& sinks, const FusedCall& call,
                                         bool backward_follows);

// Sinks are in forward.logsumexp. Its bits vary from run to run. Where the rows of dense values have as many columns
// before them as queries and keys have, so does their gradient, in a storage of its own (column_slices.h); all others
// are contiguous.
[[nodiscard]] FusedGradients cudnn_backward(const at::Tensor& grad_out, const FusedTensors& tensors,
                                            const FusedForward& forward, const FusedCall& call);

}  // namespace d9d::kernels::detail
