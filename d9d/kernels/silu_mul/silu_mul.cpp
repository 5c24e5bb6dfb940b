#include "d9d/kernels/silu_mul/silu_mul.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"
#include "d9d/kernels/silu_mul/silu_mul_kernel.h"

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

// The elements of each row of gate and up are contiguous; so are the weights, which have the accumulator's dtype.
detail::WeightedSiluMulInputs inputs_of(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weights) {
  return {.dtype = detail::dtype_of(gate),
          .num_rows = gate.size(0),
          .num_columns = gate.size(1),
          .gate = gate.const_data_ptr(),
          .gate_stride = gate.stride(0),
          .up = up.const_data_ptr(),
          .up_stride = up.stride(0),
          .weights = weights.const_data_ptr()};
}

struct WeightedSiluMul : torch::autograd::Function<WeightedSiluMul> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weights) {
    context->set_materialize_grads(false);
    context->save_for_backward({gate, up, weights});
    at::Tensor out = at::empty(gate.sizes(), gate.options());
    if (gate.is_meta()) return out;
    const c10::DeviceGuard guard(gate.device());
    detail::launch_weighted_silu_mul_forward({.inputs = inputs_of(gate, up, weights), .out = out.mutable_data_ptr()},
                                             current_cuda_stream(gate.device()));
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("weighted_silu_mul");
    if (!grads[0].defined()) return variable_list(3);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], &weights = saved[2];
    const at::Tensor grad_weights = at::empty(weights.sizes(), weights.options());
    if (gate.is_meta()) return {at::empty_like(gate), at::empty_like(up), grad_weights};
    const c10::DeviceGuard guard(gate.device());
    const at::Tensor grad_out = grads[0].contiguous();
    const auto [grad_gate, grad_up] = detail::empty_column_slices(gate, up, /*num_column_dims=*/1);
    detail::launch_weighted_silu_mul_backward({.inputs = inputs_of(gate, up, weights),
                                               .grad_out = grad_out.const_data_ptr(),
                                               .grad_gate = grad_gate.mutable_data_ptr(),
                                               .grad_up = grad_up.mutable_data_ptr(),
                                               .grad_stride = grad_gate.stride(0),
                                               .grad_weights = grad_weights.mutable_data_ptr()},
                                              current_cuda_stream(gate.device()));
    return {grad_gate, grad_up, grad_weights};
  }
};

at::Tensor with_contiguous_rows(const at::Tensor& tensor) {
  return tensor.stride(1) == 1 && tensor.stride(0) >= tensor.size(1) ? tensor : tensor.contiguous();
}

}  // namespace

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  D9D_CHECK(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.device() == up.device() &&
                gate.is_floating_point(),
            ConfigError, "[kernels::silu_mul] expected gate and up of one shape, floating dtype and device, got ",
            gate.sizes(), " ", gate.scalar_type(), " on ", gate.device(), " and ", up.sizes(), " ", up.scalar_type(),
            " on ", up.device(), ". Make them agree.");
  return SiluMul::apply(gate, up);
}

at::Tensor weighted_silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weights) {
  D9D_CHECK(gate.dim() == 2 && gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() &&
                gate.device() == up.device() && gate.is_floating_point(),
            ConfigError,
            "[kernels::weighted_silu_mul] expected gate and up [N, I] of one floating dtype and device, got ",
            gate.sizes(), " ", gate.scalar_type(), " on ", gate.device(), " and ", up.sizes(), " ", up.scalar_type(),
            " on ", up.device(), ". Make them agree.");
  D9D_CHECK(weights.sizes() == at::IntArrayRef{gate.size(0)} && weights.is_floating_point() &&
                weights.device() == gate.device(),
            ConfigError, "[kernels::weighted_silu_mul] expected floating weights [N = ", gate.size(0), "] on ",
            gate.device(), ", got ", weights.sizes(), " ", weights.scalar_type(), " on ", weights.device(),
            ". Pass one a row.");
  if (!detail::has_cuda_kernels(gate) && !gate.is_meta())
    return silu_mul(gate, up) * weights.to(gate.scalar_type()).unsqueeze(1);
  return WeightedSiluMul::apply(with_contiguous_rows(gate), with_contiguous_rows(up),
                                weights.to(at::toOpMathType(gate.scalar_type())).contiguous());
}

}  // namespace d9d::kernels
