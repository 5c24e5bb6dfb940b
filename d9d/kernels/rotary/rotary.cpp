#include "d9d/kernels/rotary/rotary.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/cpu_loops.h"
#include "d9d/kernels/first_order.h"
#include "d9d/kernels/rotary/rotary_aten.h"
#include "d9d/kernels/rotary/rotary_cpu.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_arguments(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
  D9D_CHECK(q.dim() == 4 && k.dim() == 4 && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
            ConfigError, "[kernels::apply_rotary] expected q and k [B, S, heads, D] of one B, S and D, got ", q.sizes(),
            " and ", k.sizes(), ". Put the sequence before the heads.");
  D9D_CHECK(q.is_floating_point() && q.scalar_type() == k.scalar_type(), ConfigError,
            "[kernels::apply_rotary] expected q and k of one floating dtype, got ", q.scalar_type(), " and ",
            k.scalar_type(), ". Cast one of the two.");
  D9D_CHECK(cos.dim() == 3 && cos.sizes() == sin.sizes() && (cos.size(0) == q.size(0) || cos.size(0) == 1) &&
                cos.size(1) == q.size(1) && cos.size(2) % 2 == 0 && cos.size(2) <= q.size(3),
            ConfigError, "[kernels::apply_rotary] expected cos and sin [B or 1, S, Dr] with Dr even and <= D for q ",
            q.sizes(), ", got ", cos.sizes(), " and ", sin.sizes(), ". Gather the tables by position first.");
  D9D_CHECK(cos.is_floating_point() && sin.is_floating_point() && !cos.requires_grad() && !sin.requires_grad(),
            ConfigError, "[kernels::apply_rotary] expected floating tables without gradient, got cos ",
            cos.scalar_type(), " and sin ", sin.scalar_type(), ", requires_grad ", cos.requires_grad(), " and ",
            sin.requires_grad(), ". Gradients of the tables are not built: detach them.");
  D9D_CHECK(q.device() == k.device() && q.device() == cos.device() && q.device() == sin.device(), ConfigError,
            "[kernels::apply_rotary] expected q, k, cos and sin on one device, got ", q.device(), ", ", k.device(),
            ", ", cos.device(), " and ", sin.device(), ". Move them.");
}

// Rotates one tensor after another by the same tables.
class Rotation {
 public:
  Rotation(const at::Tensor& like, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style)
      : cos_(cos.to(at::toOpMathType(like.scalar_type())).contiguous()),
        sin_(sin.to(at::toOpMathType(like.scalar_type())).contiguous()),
        style_(style) {}

  at::Tensor operator()(const at::Tensor& x, detail::RotaryPass pass) const {
    return detail::has_cpu_loops(x) ? detail::rotate_cpu(x, cos_, sin_, style_, pass)
                                    : detail::rotate_aten(x, cos_, sin_, style_, pass);
  }

 private:
  at::Tensor cos_;
  at::Tensor sin_;
  RotaryStyle style_;
};

struct ApplyRotary : torch::autograd::Function<ApplyRotary> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
    context->save_for_backward({cos, sin});
    context->saved_data["style"] = static_cast<std::int64_t>(style);
    context->set_materialize_grads(false);
    const Rotation rotate(q, cos, sin, style);
    return {rotate(q, detail::RotaryPass::kForward), rotate(k, detail::RotaryPass::kForward)};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("apply_rotary");
    variable_list result(5);
    const variable_list tables = context->get_saved_variables();
    const auto style = static_cast<RotaryStyle>(context->saved_data["style"].toInt());
    for (const std::size_t input : {0U, 1U}) {
      const at::Tensor& grad = grads[input];
      if (!grad.defined() || !context->needs_input_grad(input)) continue;
      result[input] = Rotation(grad, tables[0], tables[1], style)(grad, detail::RotaryPass::kBackward);
    }
    return result;
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> apply_rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                               const at::Tensor& sin, RotaryStyle style) {
  check_arguments(q, k, cos, sin);
  const variable_list rotated = ApplyRotary::apply(q, k, cos, sin, style);
  return {rotated[0], rotated[1]};
}

}  // namespace d9d::kernels
