#include <ATen/ATen.h>

#include "d9d/kernels/rms_norm/rms_norm_impl.h"

namespace d9d::kernels::detail {

RmsNormForward rms_norm_forward_aten(const at::Tensor& x, const at::Tensor& scale, double eps) {
  if (x.is_meta()) return {.out = at::empty_like(x), .inv_rms = at::empty({x.size(0)}, scale.options())};
  const at::Tensor wide = x.to(scale.scalar_type());
  const at::Tensor inv_rms = wide.square().mean(-1).add(eps).rsqrt();
  return {.out = (wide * inv_rms.unsqueeze(-1) * scale).to(x.scalar_type()), .inv_rms = inv_rms};
}

RmsNormBackward rms_norm_backward_aten(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& scale,
                                       const at::Tensor& inv_rms, RmsNormWanted wanted) {
  if (x.is_meta()) return {.x = at::empty_like(x), .scale = at::empty_like(scale)};
  const at::Tensor normed = x.to(scale.scalar_type()) * inv_rms.unsqueeze(-1);
  const at::Tensor grad = grad_out.to(scale.scalar_type());
  RmsNormBackward result;
  if (wanted.scale) result.scale = (grad * normed).sum(0);
  if (wanted.x) {
    const at::Tensor grad_normed = grad * scale;
    const at::Tensor projection = (grad_normed * normed).mean(-1, /*keepdim=*/true);
    result.x = ((grad_normed - normed * projection) * inv_rms.unsqueeze(-1)).to(x.scalar_type());
  }
  return result;
}

}  // namespace d9d::kernels::detail
