#include "d9d/kernels/moe_permute/indices_to_multihot.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/moe_permute/moe_permute_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Choices of experts on other ranks are scattered to an additional last column, which is cut off.
struct IndicesToMultihot : torch::autograd::Function<IndicesToMultihot> {
  static variable_list forward(AutogradContext* context, const at::Tensor& probs, const at::Tensor& indices,
                               std::int64_t num_experts) {
    context->set_materialize_grads(false);
    const auto is_here = indices.ge(0).logical_and_(indices.lt(num_experts));
    const auto columns = at::where(is_here, indices, num_experts);
    context->save_for_backward({columns});
    if (detail::has_cuda_kernels(probs)) {
      auto choices = detail::indices_to_multihot_cuda(indices, probs, num_experts);
      context->mark_non_differentiable({choices.mask});
      return {choices.mask, choices.probs};
    }
    const auto mask = at::zeros({indices.size(0), num_experts + 1}, probs.options().dtype(at::kBool))
                          .scatter_(1, columns, true)
                          .narrow(1, 0, num_experts)
                          .contiguous();
    const auto dense = at::zeros({indices.size(0), num_experts + 1}, probs.options())
                           .scatter_(1, columns, probs)
                           .narrow(1, 0, num_experts)
                           .contiguous();
    context->mark_non_differentiable({mask});
    return {mask, dense};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("indices_to_multihot");
    if (!grads[1].defined()) return {{}, {}, {}};
    const auto columns = context->get_saved_variables()[0];
    return {at::constant_pad_nd(grads[1], {0, 1}).gather(1, columns), {}, {}};
  }
};

}  // namespace

MultihotChoices indices_to_multihot(const at::Tensor& indices, const at::Tensor& probs, std::int64_t num_experts) {
  D9D_CHECK(indices.dim() == 2 && indices.sizes() == probs.sizes(), ConfigError,
            "[kernels::indices_to_multihot] expected indices and probs of one shape [tokens, choices], got ",
            indices.sizes(), " and ", probs.sizes(), ". Pass what the router returned.");
  auto choices = IndicesToMultihot::apply(probs, indices, num_experts);
  return {.mask = std::move(choices[0]), .probs = std::move(choices[1])};
}

}  // namespace d9d::kernels
