#include "d9d/modules/stale_values.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace d9d {

bool is_stale(const at::Tensor& target, const at::Tensor& values) {
  if (!at::GradMode::is_enabled() || target.is_meta() || target.sizes() != values.sizes()) return true;
  if (target.is_same(values)) return false;
  const at::NoGradGuard no_grad;
  return !at::equal(target, values.to(target.scalar_type()));
}

}  // namespace d9d
