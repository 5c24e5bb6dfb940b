#include "d9d/kernels/rotary/rotary.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/rotary/rotary_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// q or k may be undefined; its result is then undefined too.
variable_list rotate(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin,
                     RotaryStyle style, detail::RotaryPass pass) {
  const at::Tensor& like = q.defined() ? q : k;
  if (detail::has_cuda_kernels(like)) {
    const auto [q_rotated, k_rotated] = detail::rotate_cuda(q, k, cos, sin, style, pass);
    return {q_rotated, k_rotated};
  }
  const at::ScalarType wide = at::toOpMathType(like.scalar_type());
  const at::Tensor cos_rows = cos.to(wide).contiguous();
  const at::Tensor sin_rows = sin.to(wide).contiguous();
  const auto rotate_one = detail::has_cpu_loops(like) ? detail::rotate_cpu : detail::rotate_aten;
  variable_list rotated(2);
  if (q.defined()) rotated[0] = rotate_one(q, cos_rows, sin_rows, style, pass);
  if (k.defined()) rotated[1] = rotate_one(k, cos_rows, sin_rows, style, pass);
  return rotated;
}

struct ApplyRotary : torch::autograd::Function<ApplyRotary> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
    context->save_for_backward({cos, sin});
    context->saved_data["style"] = static_cast<std::int64_t>(style);
    context->set_materialize_grads(false);
    return rotate(q, k, cos, sin, style, detail::RotaryPass::kForward);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("apply_rotary");
    for (const std::size_t input : {0U, 1U})
      if (!context->needs_input_grad(input)) grads[input].reset();
    variable_list result(5);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const variable_list tables = context->get_saved_variables();
    const auto style = static_cast<RotaryStyle>(context->saved_data["style"].toInt());
    const variable_list rotated =
        rotate(grads[0], grads[1], tables[0], tables[1], style, detail::RotaryPass::kBackward);
    std::ranges::copy(rotated, result.begin());
    return result;
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> apply_rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                               const at::Tensor& sin, RotaryStyle style) {
  detail::check_rotary_arguments("apply_rotary", q, k, cos, sin);
  const variable_list rotated = ApplyRotary::apply(q, k, cos, sin, style);
  return {rotated[0], rotated[1]};
}

}  // namespace d9d::kernels
