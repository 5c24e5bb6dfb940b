#include "d9d/kernels/weighted_silu_mul/weighted_silu_mul.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/device/cuda_kernels.h"
#include "d9d/kernels/first_order.h"
#include "d9d/kernels/silu_mul/silu_mul.h"
#include "d9d/kernels/weighted_silu_mul/weighted_silu_mul_kernel.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of contiguous tensors, weights in the accumulator's dtype.
detail::WeightedSiluMulInputs inputs_of(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weights) {
  return {.dtype = detail::dtype_of(gate),
          .num_rows = gate.size(0),
          .num_columns = gate.size(1),
          .gate = gate.const_data_ptr(),
          .up = up.const_data_ptr(),
          .weights = weights.const_data_ptr()};
}

struct WeightedSiluMul : torch::autograd::Function<WeightedSiluMul> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weights) {
    context->set_materialize_grads(false);
    context->save_for_backward({gate, up, weights});
    const c10::DeviceGuard guard(gate.device());
    at::Tensor out = at::empty(gate.sizes(), gate.options());
    detail::launch_weighted_silu_mul_forward({.inputs = inputs_of(gate, up, weights), .out = out.mutable_data_ptr()},
                                             current_cuda_stream(gate.device()));
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("weighted_silu_mul");
    if (!grads[0].defined()) return variable_list(3);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], &weights = saved[2];
    const c10::DeviceGuard guard(gate.device());
    const at::Tensor grad_out = grads[0].contiguous();
    variable_list result = {at::empty(gate.sizes(), gate.options()), at::empty(up.sizes(), up.options()),
                            at::empty(weights.sizes(), weights.options())};
    detail::launch_weighted_silu_mul_backward({.inputs = inputs_of(gate, up, weights),
                                               .grad_out = grad_out.const_data_ptr(),
                                               .grad_gate = result[0].mutable_data_ptr(),
                                               .grad_up = result[1].mutable_data_ptr(),
                                               .grad_weights = result[2].mutable_data_ptr()},
                                              current_cuda_stream(gate.device()));
    return result;
  }
};

}  // namespace

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
  if (!detail::has_cuda_kernels(gate)) return silu_mul(gate, up) * weights.to(gate.scalar_type()).unsqueeze(1);
  return WeightedSiluMul::apply(gate.contiguous(), up.contiguous(),
                                weights.to(at::toOpMathType(gate.scalar_type())).contiguous());
}

}  // namespace d9d::kernels
