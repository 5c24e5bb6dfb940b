#include "d9d/kernels/moe_permute/moe_permute.h"

#include <tuple>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/moe_permute/moe_permute_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool has_kernels(const at::Tensor& rows) { return detail::has_cuda_kernels(rows) && rows.size(1) > 0; }

struct Permute : torch::autograd::Function<Permute> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& probs,
                               const TokenPermutation& permutation) {
    context->set_materialize_grads(false);
    context->save_for_backward({permutation.slot_to_row});
    if (has_kernels(x) && detail::is_carried(probs)) {
      auto [rows, row_probs] =
          detail::scatter_tokens_cuda(x, probs, permutation.slot_to_row, permutation.row_to_token.size(0));
      return {rows, row_probs};
    }
    return {x.index_select(0, permutation.row_to_token), probs.flatten().index_select(0, permutation.row_to_slot)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("permute");
    variable_list inputs(3);
    const auto slot_to_row = context->get_saved_variables()[0];
    const bool wants_x = context->needs_input_grad(0) && grads[0].defined();
    const bool wants_probs = context->needs_input_grad(1) && grads[1].defined();
    if (wants_x && wants_probs && has_kernels(grads[0]) && detail::is_carried(grads[1])) {
      std::tie(inputs[0], inputs[1]) = detail::combine_rows_cuda(grads[0], {}, grads[1], slot_to_row);
      return inputs;
    }
    if (wants_x) inputs[0] = detail::combine_rows(grads[0], slot_to_row, {});
    if (wants_probs) inputs[1] = detail::spread_to_slots(grads[1], slot_to_row);
    return inputs;
  }
};

struct Unpermute : torch::autograd::Function<Unpermute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y,
                            const std::optional<at::Tensor>& merging_probs, const TokenPermutation& permutation) {
    context->set_materialize_grads(false);
    const bool probs_need_grad = merging_probs && merging_probs->requires_grad();
    const auto probs = merging_probs.value_or(at::Tensor());
    context->save_for_backward({permutation.row_to_token, permutation.row_to_slot, permutation.slot_to_row, probs,
                                probs_need_grad ? y : at::Tensor()});
    return detail::combine_rows(y, permutation.slot_to_row, probs);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("unpermute");
    variable_list inputs(3);
    if (!grads[0].defined()) return inputs;
    const auto saved = context->get_saved_variables();
    const auto &row_to_token = saved[0], &row_to_slot = saved[1], &slot_to_row = saved[2], &merging_probs = saved[3],
               &y = saved[4];
    const detail::CombineRowsWanted wanted{.rows = context->needs_input_grad(0),
                                           .weights = y.defined() && context->needs_input_grad(1)};
    if (has_kernels(grads[0]) && merging_probs.defined()) {
      std::tie(inputs[0], inputs[1]) =
          detail::combine_rows_backward_cuda(grads[0], y, merging_probs, slot_to_row, row_to_token.size(0), wanted);
      return inputs;
    }
    if (has_kernels(grads[0]) && !merging_probs.defined()) {
      if (wanted.rows) inputs[0] = detail::scatter_tokens_cuda(grads[0], {}, slot_to_row, row_to_token.size(0)).first;
      return inputs;
    }
    const auto grad_rows = grads[0].index_select(0, row_to_token);
    const auto sum_dtype = at::toOpMathType(grad_rows.scalar_type());
    if (wanted.rows && merging_probs.defined()) {
      const auto probs_of_rows = merging_probs.flatten().index_select(0, row_to_slot).to(sum_dtype).unsqueeze(1);
      inputs[0] = (grad_rows.to(sum_dtype) * probs_of_rows).to(grad_rows.scalar_type());
    } else if (wanted.rows) {
      inputs[0] = grad_rows;
    }
    if (wanted.weights) {
      const auto grad_probs = (y.to(sum_dtype) * grad_rows.to(sum_dtype)).sum(1).to(merging_probs.scalar_type());
      inputs[1] = detail::spread_to_slots(grad_probs, slot_to_row);
    }
    return inputs;
  }
};

}  // namespace

PermutedTokens permute(const at::Tensor& x, const at::Tensor& probs, const TokenPermutation& permutation) {
  D9D_CHECK(x.dim() == 2 && x.size(0) == permutation.slot_to_row.size(0), ConfigError,
            "[kernels::permute] expected x of shape [tokens = ", permutation.slot_to_row.size(0), ", features], got ",
            x.sizes(), ". Pass the tokens that the permutation was built for.");
  D9D_CHECK(probs.sizes() == permutation.slot_to_row.sizes(), ConfigError,
            "[kernels::permute] expected one probability a slot: ", permutation.slot_to_row.sizes(), ", got ",
            probs.sizes(), ". Pass the probabilities that came with the expert ids.");
  auto rows = Permute::apply(x, probs, permutation);
  return {.hidden_states = std::move(rows[0]), .probs = std::move(rows[1])};
}

at::Tensor unpermute(const at::Tensor& y, const TokenPermutation& permutation,
                     const std::optional<at::Tensor>& merging_probs) {
  D9D_CHECK(y.dim() == 2 && y.size(0) == permutation.row_to_slot.size(0), ConfigError,
            "[kernels::unpermute] expected y of shape [rows = ", permutation.row_to_slot.size(0), ", features], got ",
            y.sizes(), ". Pass the rows that permute made, in their order.");
  D9D_CHECK(!merging_probs || merging_probs->sizes() == permutation.slot_to_row.sizes(), ConfigError,
            "[kernels::unpermute] expected one merging probability a slot: ", permutation.slot_to_row.sizes(), ", got ",
            merging_probs->sizes(), ". Pass the probabilities that came with the expert ids.");
  return Unpermute::apply(y, merging_probs, permutation);
}

}  // namespace d9d::kernels
