#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"

#include <array>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/kernels/linear/linear_gemms.h"
#include "d9d/kernels/silu_mul/silu_mul.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& tensor) { return tensor.view({-1, tensor.size(-1)}); }

struct SiluMulLinear : torch::autograd::Function<SiluMulLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weight) {
    const at::Tensor activated =
        gate.is_meta() ? at::empty(gate.sizes(), gate.options()) : detail::silu_mul_forward_cuda(gate, up);
    context->save_for_backward({gate, up, weight});
    std::vector<std::int64_t> shape = gate.sizes().vec();
    shape.back() = weight.size(0);
    return detail::linears_forward(as_matrix(activated), {weight}, /*biases=*/{}, /*joins=*/false).front().view(shape);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("silu_mul_linear");
    variable_list results(3);
    if (!grads[0].defined()) return results;
    const at::Tensor grad_out = as_matrix(grads[0].contiguous());
    const variable_list saved = context->get_saved_variables();
    const bool trains_weight = context->needs_input_grad(2);
    const detail::SiluMulLinearBackward made =
        detail::silu_mul_linear_backward_cuda(grad_out, saved[0], saved[1], /*weight=*/saved[2], trains_weight);
    results[0] = made.gate;
    results[1] = made.up;
    if (trains_weight) {
      const std::array reads = {grad_out, made.product};
      results[2] = make_gradient(/*input=*/2, reads, [](auto tensors, const auto& place) {
        return detail::linears_weight_gradients(tensors.first(1), tensors[1], {place}).front();
      });
    }
    return results;
  }
};

}  // namespace

at::Tensor silu_mul_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
  const bool trains_both = c10::GradMode::is_enabled() && gate.requires_grad() && up.requires_grad();
  if (trains_both && detail::fits_silu_mul_linear_kernel(gate, up, weight) &&
      detail::pays_silu_mul_linear_kernel(gate.numel() / gate.size(-1), gate.size(-1)))
    return SiluMulLinear::apply(gate, up, weight);
  return kernels::linear(silu_mul(gate, up), weight);
}

}  // namespace d9d::kernels
