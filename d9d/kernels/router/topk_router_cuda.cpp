#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/router/topk_router_impl.h"
#include "d9d/kernels/router/topk_router_kernel.h"

namespace d9d::kernels::detail {
namespace {

TopkRouterShape shape_of(const RoutingRequest& request) {
  return {.dtype = dtype_of(request.logits),
          .num_tokens = request.logits.size(0),
          .num_experts = static_cast<int>(request.logits.size(1)),
          .top_k = static_cast<int>(request.top_k),
          .renormalize = request.renormalize};
}

at::TensorOptions wide_options(const at::Tensor& logits) {
  return logits.options().dtype(at::toOpMathType(logits.scalar_type()));
}

}  // namespace

bool has_topk_router_kernel(const RoutingRequest& request) {
  return has_cuda_kernels(request.logits) && request.logits.size(1) <= kMaxRouterExperts &&
         request.top_k <= kMaxRouterChoices;
}

RoutingResult topk_router_forward_cuda(const RoutingRequest& request) {
  const c10::DeviceGuard guard(request.logits.device());
  const at::TensorOptions options = wide_options(request.logits);
  at::Tensor bias;
  if (request.expert_bias) bias = request.expert_bias->to(options.dtype()).contiguous();
  RoutingResult result{.indices = at::empty({request.logits.size(0), request.top_k}, options.dtype(at::kLong)),
                       .probs = at::empty({request.logits.size(0), request.top_k}, options)};
  launch_topk_router_forward({.shape = shape_of(request),
                              .logits = request.logits.const_data_ptr(),
                              .expert_bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                              .indices = result.indices.mutable_data_ptr<std::int64_t>(),
                              .probs = result.probs.mutable_data_ptr()},
                             current_cuda_stream(request.logits.device()));
  return result;
}

at::Tensor topk_router_backward_cuda(const RoutingRequest& request, const at::Tensor& indices,
                                     const at::Tensor& grad_probs) {
  const c10::DeviceGuard guard(request.logits.device());
  const at::Tensor wide_grad = grad_probs.to(wide_options(request.logits).dtype()).contiguous();
  at::Tensor grad_logits = at::empty(request.logits.sizes(), request.logits.options());
  launch_topk_router_backward({.shape = shape_of(request),
                               .logits = request.logits.const_data_ptr(),
                               .indices = indices.const_data_ptr<std::int64_t>(),
                               .grad_probs = wide_grad.const_data_ptr(),
                               .grad_logits = grad_logits.mutable_data_ptr()},
                              current_cuda_stream(request.logits.device()));
  return grad_logits;
}

}  // namespace d9d::kernels::detail
