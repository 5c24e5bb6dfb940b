#include "d9d/kernels/norm_rotary/norm_rotary.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/norm_rotary/norm_rotary_impl.h"
#include "d9d/kernels/rms_norm/rms_norm.h"
#include "d9d/kernels/rms_norm/rms_norm_impl.h"
#include "d9d/kernels/rotary/rotary_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NormRotary : torch::autograd::Function<NormRotary> {
  // Returns {q, k}, and v if it is given.
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& q_weight, const at::Tensor& k_weight, const at::Tensor& cos,
                               const at::Tensor& sin, const std::optional<at::Tensor>& v,
                               const NormRotaryOptions& options) {
    context->save_for_backward({q, k, q_weight, k_weight, cos, sin});
    context->saved_data["style"] = static_cast<std::int64_t>(options.style);
    context->saved_data["eps"] = options.eps;
    context->saved_data["zero_centered"] = options.zero_centered;
    context->set_materialize_grads(false);
    const auto out = detail::norm_rotary_forward_cuda(
        {.x = {q, k}, .weights = {q_weight, k_weight}, .cos = cos, .sin = sin}, options);
    if (!v) return {out[0], out[1]};
    const at::AutoDispatchBelowADInplaceOrView no_views;
    return {out[0], out[1], at::alias(*v)};
  }

  // The engine moves gradients that it received or summed into `grads`, so that this list holds the only reference to
  // grads[2] unless a hook, a gradient retained for the caller or another node that got the same tensor holds one too;
  // a view would be a further tensor of its storage. is_only_reference() excludes both: then no other code can access
  // the columns before those of v, and no kernel enqueued elsewhere reads them.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("norm_rotary");
    const at::Tensor none;
    const at::Tensor& grad_v = grads.size() > 2 ? grads[2] : none;
    const variable_list saved = context->get_saved_variables();
    auto [x, weights] = detail::norm_rotary_backward_cuda(
        {grads[0], grads[1]},
        {.x = {saved[0], saved[1]}, .weights = {saved[2], saved[3]}, .cos = saved[4], .sin = saved[5]},
        {.style = static_cast<RotaryStyle>(context->saved_data["style"].toInt()),
         .eps = context->saved_data["eps"].toDouble(),
         .zero_centered = context->saved_data["zero_centered"].toBool()},
        {.x = {context->needs_input_grad(0), context->needs_input_grad(1)},
         .weights = {context->needs_input_grad(2), context->needs_input_grad(3)}},
        detail::is_only_reference(grad_v) ? grad_v : none);
    return {x[0], x[1], weights[0], weights[1], {}, {}, grad_v, {}};
  }
};

// Returns {q, k}, and v if it went through the autograd function with them.
variable_list apply(const at::Tensor& q, const at::Tensor& k, const at::Tensor& q_weight, const at::Tensor& k_weight,
                    const at::Tensor& cos, const at::Tensor& sin, const std::optional<at::Tensor>& v,
                    const NormRotaryOptions& options) {
  detail::check_rms_norm_arguments("norm_rotary", q, q_weight);
  detail::check_rms_norm_arguments("norm_rotary", k, k_weight);
  detail::check_rotary_arguments("norm_rotary", q, k, cos, sin);
  if (!detail::fits_norm_rotary_kernel({.x = {q, k}, .weights = {q_weight, k_weight}, .cos = cos, .sin = sin})) {
    const auto turned =
        apply_rotary(rms_norm(q, q_weight, options.eps, options.zero_centered),
                     rms_norm(k, k_weight, options.eps, options.zero_centered), cos, sin, options.style);
    return {turned.first, turned.second};
  }
  return NormRotary::apply(q, k, q_weight, k_weight, cos, sin, v, options);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> norm_rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& q_weight,
                                              const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin,
                                              const NormRotaryOptions& options) {
  variable_list results = apply(q, k, q_weight, k_weight, cos, sin, std::nullopt, options);
  return {std::move(results[0]), std::move(results[1])};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_rotary(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v, const at::Tensor& q_weight,
                                                           const at::Tensor& k_weight, const at::Tensor& cos,
                                                           const at::Tensor& sin, const NormRotaryOptions& options) {
  const bool passes = v.requires_grad() && detail::are_adjacent_columns(q, k, /*num_column_dims=*/2) &&
                      detail::are_adjacent_columns(k, v, /*num_column_dims=*/2);
  variable_list results = apply(q, k, q_weight, k_weight, cos, sin, passes ? std::optional(v) : std::nullopt, options);
  if (results.size() == 2) results.push_back(v);
  return {std::move(results[0]), std::move(results[1]), std::move(results[2])};
}

}  // namespace d9d::kernels
