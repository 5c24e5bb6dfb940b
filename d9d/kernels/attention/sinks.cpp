#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/rounding.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/attention/attention_kernel.h"
#include "d9d/kernels/attention/fused_kernels.h"
#include "d9d/kernels/common/cuda_kernels.h"

namespace d9d::kernels::detail {
namespace {

at::Tensor of_queries(const at::Tensor& sinks, at::ScalarType dtype) { return sinks.to(dtype).view({1, -1, 1}); }

at::Tensor by_kernel(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp, const FusedForward& forward,
                     const at::Tensor& sinks) {
  constexpr std::int64_t kChunks = 128;  // gives enough blocks to fill a GPU for any number of heads
  const c10::DeviceGuard guard(grad_out.device());
  const auto rows_of = [](const at::Tensor& x) { return x.transpose(1, 2).contiguous(); };
  const at::Tensor logsumexp = rows_of(forward.logsumexp), float_sinks = sinks.to(at::kFloat).contiguous();
  const at::Tensor grad = grad_logsumexp.defined() ? rows_of(grad_logsumexp.to(at::kFloat)) : at::Tensor();
  const std::int64_t num_rows = grad_out.size(0) * grad_out.size(1), num_heads = grad_out.size(2);
  const std::int64_t rows_per_chunk = std::max<std::int64_t>(8, divide_up(num_rows, kChunks));
  const at::Tensor partial = at::empty({divide_up(num_rows, rows_per_chunk), num_heads}, logsumexp.options());
  launch_sink_gradient({.dtype = dtype_of(grad_out),
                        .num_rows = num_rows,
                        .num_heads = num_heads,
                        .num_features = grad_out.size(3),
                        .rows_per_chunk = rows_per_chunk,
                        .out = forward.out.const_data_ptr(),
                        .grad_out = grad_out.const_data_ptr(),
                        .logsumexp = logsumexp.const_data_ptr<float>(),
                        .grad_logsumexp = grad.defined() ? grad.const_data_ptr<float>() : nullptr,
                        .sinks = float_sinks.const_data_ptr<float>(),
                        .partial = partial.mutable_data_ptr<float>()},
                       current_cuda_stream(grad_out.device()));
  return partial.sum(0).to(sinks.scalar_type());
}

}  // namespace

void add_sinks(FusedForward& forward, const at::Tensor& sinks) {
  const at::Tensor sink = of_queries(sinks, at::kFloat);
  // The kernel's logsumexp is +inf for a query that sees no key.
  const at::Tensor keys = forward.logsumexp.masked_fill(forward.logsumexp == kInfiniteLogsumexp, -kInfiniteLogsumexp);
  forward.out.mul_((keys - sink).sigmoid().transpose(1, 2).unsqueeze(-1));
  forward.logsumexp = at::logaddexp(keys, sink);
}

at::Tensor sink_gradient(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp, const FusedForward& forward,
                         const at::Tensor& sinks) {
  if (sinks.is_meta()) return at::empty(sinks.sizes(), sinks.options());
  const at::Tensor grad = grad_out.contiguous();
  if (has_cuda_kernels(grad) && grad.numel() > 0) return by_kernel(grad, grad_logsumexp, forward, sinks);
  const at::ScalarType dtype = at::toOpMathType(grad.scalar_type());
  at::Tensor dot = (grad.to(dtype) * forward.out.to(dtype)).sum(-1).transpose(1, 2);
  if (grad_logsumexp.defined()) dot = dot - grad_logsumexp;
  return (-(of_queries(sinks, dtype) - forward.logsumexp).exp() * dot).sum(2).sum(0).to(sinks.scalar_type());
}

}  // namespace d9d::kernels::detail
