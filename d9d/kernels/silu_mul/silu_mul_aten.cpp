#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/kernels/silu_mul/silu_mul_impl.h"

namespace d9d::kernels::detail {

at::Tensor silu_mul_forward_aten(const at::Tensor& gate, const at::Tensor& up) {
  if (gate.is_meta()) return at::empty(gate.sizes(), gate.options());
  const at::ScalarType wide = at::toOpMathType(gate.scalar_type());
  return (at::silu(gate.to(wide)) * up.to(wide)).to(gate.scalar_type());
}

SiluMulBackward silu_mul_backward_aten(const at::Tensor& grad_out, const at::Tensor& gate, const at::Tensor& up,
                                       SiluMulWanted wanted) {
  if (gate.is_meta()) return {.gate = at::empty_like(gate), .up = at::empty_like(up)};
  const at::ScalarType wide = at::toOpMathType(gate.scalar_type());
  const at::Tensor gate_wide = gate.to(wide);
  const at::Tensor grad = grad_out.to(wide);
  SiluMulBackward result;
  if (wanted.gate) result.gate = at::silu_backward(grad * up.to(wide), gate_wide).to(gate.scalar_type());
  if (wanted.up) result.up = (grad * at::silu(gate_wide)).to(up.scalar_type());
  return result;
}

}  // namespace d9d::kernels::detail
