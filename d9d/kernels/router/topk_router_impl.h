// topk_router on a GPU, without autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/router/topk_router.h"

namespace d9d::kernels::detail {

// Whether the kernels take these logits and this many choices.
[[nodiscard]] bool has_topk_router_kernel(const RoutingRequest& request);

// Both need contiguous logits.
[[nodiscard]] RoutingResult topk_router_forward_cuda(const RoutingRequest& request);
[[nodiscard]] at::Tensor topk_router_backward_cuda(const RoutingRequest& request, const at::Tensor& indices,
                                                   const at::Tensor& grad_probs);

}  // namespace d9d::kernels::detail
