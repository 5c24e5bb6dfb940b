// Adds sinks to the results of kernels that do not support them: a sink only adds its exponential to the denominator of
// the softmax.
#pragma once

#include "d9d/kernels/attention/fused_call.h"

namespace d9d::kernels::detail {

// Converts the result of a kernel without sinks into that with `sinks` [Hq]: scales forward.out in place and replaces
// forward.logsumexp.
void add_sinks(FusedForward& forward, const at::Tensor& sinks);

// The gradient of the sinks, [Hq] in the dtype of `sinks`: minus the sum over queries of exp(sink - logsumexp) *
// (grad_out . out - grad_logsumexp), summed in float in an order that only shapes decide. grad_logsumexp: [B, Hq, S],
// or undefined.
[[nodiscard]] at::Tensor sink_gradient(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                       const FusedForward& forward, const at::Tensor& sinks);

}  // namespace d9d::kernels::detail
