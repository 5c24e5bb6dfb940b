#include <ATen/ATen.h>

#include "d9d/kernels/rotary/rotary_impl.h"

namespace d9d::kernels::detail {
namespace {

// [-b, a]
at::Tensor rotated(const at::Tensor& x, RotaryStyle style) {
  if (style == RotaryStyle::kHalf) {
    const auto halves = x.chunk(2, -1);
    return at::cat({-halves[1], halves[0]}, -1);
  }
  const at::Tensor pairs = x.unflatten(-1, {-1, 2});
  return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
}

}  // namespace

at::Tensor rotate_aten(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style,
                       RotaryPass pass) {
  if (x.is_meta()) return at::empty(x.sizes(), x.options());
  const std::int64_t rotary_dim = cos.size(-1);
  const at::Tensor rotary_channels = x.narrow(-1, 0, rotary_dim).to(cos.scalar_type());
  const at::Tensor cos_heads = cos.unsqueeze(2);
  const at::Tensor sin_heads = sin.unsqueeze(2);
  const at::Tensor result = pass == RotaryPass::kForward
                                ? rotary_channels * cos_heads + rotated(rotary_channels, style) * sin_heads
                                : rotary_channels * cos_heads - rotated(rotary_channels * sin_heads, style);
  at::Tensor out = at::empty(x.sizes(), x.options());
  out.narrow(-1, 0, rotary_dim).copy_(result);
  const std::int64_t num_passing = x.size(-1) - rotary_dim;
  out.narrow(-1, rotary_dim, num_passing).copy_(x.narrow(-1, rotary_dim, num_passing));
  return out;
}

}  // namespace d9d::kernels::detail
