#include "d9d/kernels/rms_norm/add_rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/rms_norm/rms_norm.h"
#include "d9d/kernels/rms_norm/rms_norm_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

detail::AddRmsNormForward run(const at::Tensor& x, const std::optional<at::Tensor>& residual, const at::Tensor& weight,
                              detail::RmsNormOptions options) {
  if (residual) return detail::add_rms_norm_forward_cuda(x, *residual, weight, options);
  const at::AutoDispatchBelowADInplaceOrView no_views;
  return {.sum = at::alias(x), .norm = detail::rms_norm_forward_cuda(x, weight, options)};
}

struct AddRmsNormCuda : torch::autograd::Function<AddRmsNormCuda> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                               const at::Tensor& weight, double eps, bool zero_centered) {
    const auto [sum, norm] = run(x, residual, weight, {.eps = eps, .zero_centered = zero_centered});
    context->save_for_backward({sum, weight});
    context->saved_data["has_residual"] = residual.has_value();
    context->saved_data["eps"] = eps;
    context->saved_data["zero_centered"] = zero_centered;
    context->set_materialize_grads(false);
    return {sum, norm};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("add_rms_norm");
    const std::size_t num_addends = context->saved_data["has_residual"].toBool() ? 2 : 1;
    const bool wants_sum = context->needs_input_grad(0) || (num_addends == 2 && context->needs_input_grad(1));
    variable_list result(5);
    at::Tensor grad_sum = grads[0];
    if (grads[1].defined()) {
      const variable_list saved = context->get_saved_variables();
      const auto norm =
          detail::rms_norm_backward_cuda(grads[1], grads[0], saved[0], saved[1],
                                         {.eps = context->saved_data["eps"].toDouble(),
                                          .zero_centered = context->saved_data["zero_centered"].toBool()},
                                         {.x = wants_sum, .scale = context->needs_input_grad(num_addends)});
      grad_sum = norm.x;
      result[2] = norm.scale;
    }
    if (context->needs_input_grad(0)) result[0] = grad_sum;
    if (num_addends == 2 && context->needs_input_grad(1)) result[1] = grad_sum;
    return result;
  }
};

}  // namespace

AddRmsNorm add_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual, const at::Tensor& weight,
                        double eps, bool zero_centered) {
  detail::check_rms_norm_arguments("add_rms_norm", x, weight);
  D9D_CHECK(!residual || (x.sizes() == residual->sizes() && x.scalar_type() == residual->scalar_type() &&
                          x.device() == residual->device()),
            ConfigError, "[kernels::add_rms_norm] expected x and residual of one shape, dtype and device, got ",
            x.sizes(), " ", x.scalar_type(), " on ", x.device(), " and ", residual->sizes(), " ",
            residual->scalar_type(), " on ", residual->device(), ". Make them agree.");
  if (!detail::has_cuda_kernels(x) || !detail::has_cuda_kernels(weight)) {
    const at::Tensor sum = residual ? x + *residual : x;
    return {.sum = sum, .norm = rms_norm(sum, weight, eps, zero_centered)};
  }
  const variable_list results = AddRmsNormCuda::apply(x, residual, weight, eps, zero_centered);
  return {.sum = results[0], .norm = results[1]};
}

}  // namespace d9d::kernels
