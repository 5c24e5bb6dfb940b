// Sinks of kernels that know none: a sink only adds its exponential to what a query's weights are divided by.
#pragma once

#include "d9d/kernels/attention/fused_call.h"

namespace d9d::kernels::detail {

// Turns what a kernel computed without sinks [Hq] into attention with them, in place where it can.
void add_sinks(FusedForward& forward, const at::Tensor& sinks);

// [Hq] in the dtype of `sinks`: minus the sum over queries of exp(sink - logsumexp) * (grad_out . out -
// grad_logsumexp), in float, in an order that shapes decide. grad_logsumexp: [B, Hq, S], or undefined.
[[nodiscard]] at::Tensor sink_gradient(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                       const FusedForward& forward, const at::Tensor& sinks);

}  // namespace d9d::kernels::detail
