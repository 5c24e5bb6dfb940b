#include "d9d/kernels/silu_mul/silu_mul.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor run_forward(const at::Tensor& gate, const at::Tensor& up) {
  if (detail::has_cuda_kernels(gate)) return detail::silu_mul_forward_cuda(gate, up);
  const auto forward = detail::has_cpu_loops(gate) ? detail::silu_mul_forward_cpu : detail::silu_mul_forward_aten;
  return forward(gate.contiguous(), up.contiguous());
}

detail::SiluMulBackward run_backward(const at::Tensor& grad_out, const at::Tensor& gate, const at::Tensor& up,
                                     detail::SiluMulWanted wanted) {
  if (detail::has_cuda_kernels(gate)) return detail::silu_mul_backward_cuda(grad_out, gate, up, wanted);
  const auto backward = detail::has_cpu_loops(gate) ? detail::silu_mul_backward_cpu : detail::silu_mul_backward_aten;
  return backward(grad_out.contiguous(), gate.contiguous(), up.contiguous(), wanted);
}

struct SiluMul : torch::autograd::Function<SiluMul> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return run_forward(gate, up);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("silu_mul");
    const detail::SiluMulWanted wanted{.gate = context->needs_input_grad(0), .up = context->needs_input_grad(1)};
    if (!grads[0].defined()) return variable_list(2);
    const variable_list saved = context->get_saved_variables();
    const auto [gate, up] = run_backward(grads[0], saved[0], saved[1], wanted);
    return {gate, up};
  }
};

}  // namespace

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  D9D_CHECK(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.device() == up.device() &&
                gate.is_floating_point(),
            ConfigError, "[kernels::silu_mul] expected gate and up of one shape, floating dtype and device, got ",
            gate.sizes(), " ", gate.scalar_type(), " on ", gate.device(), " and ", up.sizes(), " ", up.scalar_type(),
            " on ", up.device(), ". Make them agree.");
  return SiluMul::apply(gate, up);
}

}  // namespace d9d::kernels
