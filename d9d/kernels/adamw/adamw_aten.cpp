#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/kernels/adamw/adamw_impl.h"
#include "d9d/kernels/stochastic/copy_stochastic.h"

namespace d9d::kernels::detail {
namespace {

// Copies `value` to `target`. A bfloat16 target is rounded stochastically if the parameter has `rounding`, with the
// random stream whose step is `streams_later` after the parameter's; other targets are rounded to nearest.
void store(const at::Tensor& value, const AdamWTensors& tensors, std::uint64_t streams_later,
           const at::Tensor& target) {
  if (value.is_same(target)) return;
  if (!tensors.rounding || target.scalar_type() != at::kBFloat16) {
    target.copy_(value);
    return;
  }
  RandomStream stream = rounding_stream(tensors);
  stream.step += streams_later;
  const at::Tensor rounded = target.is_contiguous() ? target : at::empty(target.sizes(), target.options());
  copy_fp32_to_bf16_stochastic_(rounded, value, stream, tensors.rounding->rows);
  if (!rounded.is_same(target)) target.copy_(rounded);
}

}  // namespace

void adamw_aten(const AdamWTensors& tensors, const AdamWFactors& factors, const at::Tensor& grad_scale) {
  const at::ScalarType wide = at::toOpMathType(tensors.parameter.scalar_type());
  at::Tensor grad = tensors.grad.to(wide) * grad_scale.to(wide);
  if (factors.gradient_decay != 0) grad.add_(tensors.parameter.to(wide), factors.gradient_decay);
  const at::Tensor exp_avg = tensors.exp_avg.to(wide);
  const at::Tensor exp_avg_sq = tensors.exp_avg_sq.to(wide);
  exp_avg.lerp_(grad, 1 - factors.beta1);
  exp_avg_sq.mul_(factors.beta2).addcmul_(grad, grad, 1 - factors.beta2);
  at::Tensor second_moment = exp_avg_sq;
  if (tensors.max_exp_avg_sq.defined()) {
    second_moment = at::maximum(tensors.max_exp_avg_sq, exp_avg_sq);
    tensors.max_exp_avg_sq.copy_(second_moment);
  }
  const at::Tensor denominator = second_moment.sqrt().div_(factors.bias_correction2_sqrt).add_(factors.eps);
  const at::Tensor decayed = tensors.parameter.to(wide) * factors.parameter_decay;
  store(decayed.addcdiv_(exp_avg, denominator, -factors.step_size), tensors, 0, tensors.parameter);
  store(exp_avg, tensors, 1, tensors.exp_avg);
  store(exp_avg_sq, tensors, 2, tensors.exp_avg_sq);
}

}  // namespace d9d::kernels::detail
