#include "d9d/kernels/common/unless_nan.h"

#include <utility>

#include <ATen/ATen.h>

namespace d9d::kernels::detail {

void update_unless_nan(const at::Tensor& factor, const std::vector<at::Tensor>& tensors,
                       const std::function<void()>& update) {
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  for (const at::Tensor& each : tensors)
    if (each.defined()) before.emplace_back(each, each.clone());
  update();
  const at::Tensor is_nan = factor.isnan();
  for (const auto& [tensor, old] : before) tensor.copy_(at::where(is_nan, old, tensor));
}

}  // namespace d9d::kernels::detail
