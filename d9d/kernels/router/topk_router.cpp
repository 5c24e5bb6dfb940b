#include "d9d/kernels/router/topk_router.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/router/topk_router_impl.h"
#include "d9d/kernels/router/topk_router_kernel.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct TopkRouter : torch::autograd::Function<TopkRouter> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits,
                               const std::optional<at::Tensor>& expert_bias, std::int64_t top_k, bool renormalize) {
    context->set_materialize_grads(false);
    context->saved_data["renormalize"] = renormalize;
    const RoutingRequest request{
        .logits = logits, .top_k = top_k, .renormalize = renormalize, .expert_bias = expert_bias};
    const bool has_kernel = detail::has_topk_router_kernel(request);
    context->saved_data["has_kernel"] = has_kernel;
    if (has_kernel) {
      auto routing = detail::topk_router_forward_cuda(request);
      context->save_for_backward({logits, routing.indices});
      context->mark_non_differentiable({routing.indices});
      return {routing.indices, routing.probs};
    }
    const auto all_probs = at::softmax(logits, 1, at::toOpMathType(logits.scalar_type()));
    const auto scores = expert_bias ? all_probs + *expert_bias : all_probs;
    const auto indices = detail::select_top_k(scores, top_k);
    const auto chosen = all_probs.gather(1, indices);
    context->save_for_backward({all_probs, indices});
    context->saved_data["dtype"] = logits.scalar_type();
    context->mark_non_differentiable({indices});
    return {indices, renormalize ? chosen / (chosen.sum(1, true) + detail::kSmallestProbabilitySum) : chosen};
  }

  // With p the softmax, w = p at the chosen, s = sum w + tiny and r = w / s:
  //   dw = renormalised ? (dr - sum(dr * r)) / s : dr        dlogits = p * (dp - sum(p * dp)), dp = dw at the chosen
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("topk_router");
    if (!grads[1].defined()) return {{}, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    const bool renormalize = context->saved_data["renormalize"].toBool();
    if (context->saved_data["has_kernel"].toBool()) {
      const RoutingRequest request{.logits = saved[0], .top_k = saved[1].size(1), .renormalize = renormalize};
      return {detail::topk_router_backward_cuda(request, saved[1], grads[1]), {}, {}, {}};
    }
    const auto &all_probs = saved[0], &indices = saved[1];
    const auto chosen = all_probs.gather(1, indices);
    auto grad_chosen = grads[1];
    if (renormalize) {
      const auto sum = chosen.sum(1, true) + detail::kSmallestProbabilitySum;
      grad_chosen = (grad_chosen - (grad_chosen * chosen / sum).sum(1, true)) / sum;
    }
    const auto weighted = grad_chosen * chosen;
    const auto grad_logits = (all_probs * -weighted.sum(1, true)).scatter_add_(1, indices, weighted);
    return {grad_logits.to(context->saved_data["dtype"].toScalarType()), {}, {}, {}};
  }
};

}  // namespace

RoutingResult topk_router(const RoutingRequest& request) {
  const auto& logits = request.logits;
  D9D_CHECK(logits.dim() == 2 && at::isFloatingType(logits.scalar_type()), ConfigError,
            "[kernels::topk_router] expected floating logits of shape [tokens, experts], got ", logits.sizes(), " ",
            logits.scalar_type(), ". Flatten the tokens first.");
  D9D_CHECK(request.top_k >= 1 && request.top_k <= logits.size(1), ConfigError,
            "[kernels::topk_router] expected top_k between 1 and the number of experts = ", logits.size(1), ", got ",
            request.top_k, ". Choose fewer experts a token.");
  D9D_CHECK(!request.expert_bias || request.expert_bias->sizes() == at::IntArrayRef{logits.size(1)}, ConfigError,
            "[kernels::topk_router] expected expert_bias of shape [experts = ", logits.size(1), "], got ",
            request.expert_bias->sizes(), ". Give one number an expert.");
  auto routing = TopkRouter::apply(detail::has_topk_router_kernel(request) ? logits.contiguous() : logits,
                                   request.expert_bias, request.top_k, request.renormalize);
  return {.indices = std::move(routing[0]), .probs = std::move(routing[1])};
}

namespace detail {

at::Tensor select_top_k(const at::Tensor& scores, std::int64_t top_k) {
  return scores.is_cpu() ? select_top_k_cpu(scores, top_k) : select_top_k_aten(scores, top_k);
}

// at::topk does not specify the order of equal scores; a stable sort does.
at::Tensor select_top_k_aten(const at::Tensor& scores, std::int64_t top_k) {
  return std::get<1>(at::sort(scores, /*stable=*/true, /*dim=*/1, /*descending=*/true))
      .narrow(1, 0, top_k)
      .contiguous();
}

}  // namespace detail
}  // namespace d9d::kernels
