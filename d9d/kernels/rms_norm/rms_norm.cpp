#include "d9d/kernels/rms_norm/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/cpu_loops.h"
#include "d9d/kernels/first_order.h"
#include "d9d/kernels/rms_norm/rms_norm_aten.h"
#include "d9d/kernels/rms_norm/rms_norm_cpu.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_arguments(const at::Tensor& x, const at::Tensor& weight) {
  D9D_CHECK(weight.dim() == 1 && weight.size(0) > 0 && x.dim() > 0 && x.size(-1) == weight.size(0), ConfigError,
            "[kernels::rms_norm] expected x [..., N] and weight [N] with N > 0, got x ", x.sizes(), " and weight ",
            weight.sizes(), ". Normalise over the last dim.");
  D9D_CHECK(x.is_floating_point() && weight.is_floating_point(), ConfigError,
            "[kernels::rms_norm] expected floating x and weight, got ", x.scalar_type(), " and ", weight.scalar_type(),
            ". Cast them first.");
  D9D_CHECK(x.device() == weight.device(), ConfigError, "[kernels::rms_norm] expected x and weight on one device, got ",
            x.device(), " and ", weight.device(), ". Move one of the two.");
}

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
    const at::Tensor scale = scale_of(x, weight, zero_centered);
    const auto [out, inv_rms] = detail::has_cpu_loops(x) ? detail::rms_norm_forward_cpu(rows_of(x), scale, eps)
                                                         : detail::rms_norm_forward_aten(rows_of(x), scale, eps);
    context->save_for_backward({x, weight, inv_rms});
    context->saved_data["zero_centered"] = zero_centered;
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
    const at::Tensor scale = scale_of(x, weight, context->saved_data["zero_centered"].toBool());
    const auto backward = detail::has_cpu_loops(x) ? detail::rms_norm_backward_cpu : detail::rms_norm_backward_aten;
    const auto [grad_x, grad_scale] = backward(rows_of(grads[0]), rows_of(x), scale, saved[2], wanted);
    if (wanted.x) result[0] = grad_x.view(x.sizes());
    if (wanted.scale) result[1] = grad_scale.to(weight.scalar_type());
    return result;
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool zero_centered) {
  check_arguments(x, weight);
  return RmsNorm::apply(x, weight, eps, zero_centered);
}

}  // namespace d9d::kernels
