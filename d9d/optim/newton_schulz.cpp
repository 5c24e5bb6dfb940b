#include "d9d/optim/newton_schulz.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

namespace d9d {

at::Tensor orthogonalized(at::Tensor x, const NewtonSchulzOptions& options) {
  const at::NoGradGuard no_grad;
  const auto [a, b, c] = options.coefficients;
  const at::ScalarType wide = at::toOpMathType(x.scalar_type());
  x.div_(at::linalg_vector_norm(x, 2, at::IntArrayRef({1, 2}), /*keepdim=*/true, wide).clamp_min_(options.eps));
  const bool is_wide = x.size(1) <= x.size(2);
  for (std::int64_t step = 0; step < options.num_steps; ++step) {
    const at::Tensor gram = is_wide ? at::bmm(x, x.mT()) : at::bmm(x.mT(), x);  // of the shorter side
    const at::Tensor factor = at::baddbmm(gram, gram, gram, /*beta=*/b, /*alpha=*/c);
    x = is_wide ? at::baddbmm(x, factor, x, /*beta=*/a) : at::baddbmm(x, x, factor, /*beta=*/a);
  }
  return x;
}

}  // namespace d9d
