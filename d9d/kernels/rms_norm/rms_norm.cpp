#include "d9d/kernels/rms_norm/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/rms_norm/rms_norm_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) {
  const std::int64_t num_columns = x.size(-1);
  return x.contiguous().view({x.numel() / num_columns, num_columns});
}

at::Tensor scale_of(const at::Tensor& x, const at::Tensor& weight, bool zero_centered) {
  const at::Tensor wide = weight.to(at::toOpMathType(x.scalar_type())).contiguous();
  return zero_centered ? wide + 1 : wide;
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps,
                            bool zero_centered) {
    context->saved_data["eps"] = eps;
    context->saved_data["zero_centered"] = zero_centered;
    if (detail::has_cuda_kernels(x) && detail::has_cuda_kernels(weight)) {
      context->save_for_backward({x, weight});
      return detail::rms_norm_forward_cuda(x, weight, {.eps = eps, .zero_centered = zero_centered});
    }
    const at::Tensor scale = scale_of(x, weight, zero_centered);
    const auto [out, inv_rms] = detail::has_cpu_loops(x) ? detail::rms_norm_forward_cpu(rows_of(x), scale, eps)
                                                         : detail::rms_norm_forward_aten(rows_of(x), scale, eps);
    context->save_for_backward({x, weight, inv_rms});
    return out.view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("rms_norm");
    const detail::RmsNormWanted wanted{.x = context->needs_input_grad(0), .scale = context->needs_input_grad(1)};
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const bool zero_centered = context->saved_data["zero_centered"].toBool();
    if (detail::has_cuda_kernels(x) && detail::has_cuda_kernels(weight)) {
      const detail::RmsNormOptions options{.eps = context->saved_data["eps"].toDouble(),
                                           .zero_centered = zero_centered};
      const auto cuda = detail::rms_norm_backward_cuda(grads[0], /*grad_sum=*/{}, x, weight, options, wanted);
      result[0] = cuda.x;
      result[1] = cuda.scale;
      return result;
    }
    const at::Tensor scale = scale_of(x, weight, zero_centered);
    const auto backward = detail::has_cpu_loops(x) ? detail::rms_norm_backward_cpu : detail::rms_norm_backward_aten;
    const auto [grad_x, grad_scale] = backward(rows_of(grads[0]), rows_of(x), scale, saved[2], wanted);
    if (wanted.x) result[0] = grad_x.view(x.sizes());
    if (wanted.scale) result[1] = grad_scale.to(weight.scalar_type());
    return result;
  }
};

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

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool zero_centered) {
  detail::check_rms_norm_arguments("rms_norm", x, weight);
  return RmsNorm::apply(x, weight, eps, zero_centered);
}

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
