#include "d9d/loop/component/weighted_loss.h"

#include <ATen/ATen.h>

namespace d9d {

WeightedLoss weighted_loss(const LossResult& result) {
  const at::ScalarType dtype = result.loss.scalar_type();
  const at::ScalarType wide = at::promote_types(dtype, at::kFloat);
  const at::Tensor weight = result.loss_weight ? *result.loss_weight : result.loss.detach().new_ones({});
  return {.loss = result.loss.to(wide), .weight = wide == dtype ? weight : weight.to(dtype).to(wide)};
}

}  // namespace d9d
