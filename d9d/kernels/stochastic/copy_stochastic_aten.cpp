#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/kernels/stochastic/copy_stochastic_impl.h"
#include "d9d/kernels/stochastic/stochastic_rounding.h"

namespace d9d::kernels::detail {

void copy_stochastic_aten(const StochasticCopy& copy) {
  const at::NoGradGuard no_grad;
  at::Tensor noise = at::empty(copy.source.sizes(), at::kInt);
  auto* noises = noise.mutable_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < noise.numel(); ++i)
    noises[i] = static_cast<std::int32_t>(rounding_noise(copy.stream, copy.rows[i]));
  const at::Tensor bits = copy.source.detach().view(at::kInt);
  const at::Tensor chosen = at::where(copy.source.isnan(), bits.bitwise_or(0x00400000), bits + noise.to(bits.device()));
  copy.target.copy_(chosen.bitwise_right_shift(16).to(at::kShort).view(at::kBFloat16));
}

}  // namespace d9d::kernels::detail
