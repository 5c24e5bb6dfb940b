#include "d9d/loop/measure/optimizer_sizes.h"

#include <ATen/ATen.h>

#include "d9d/optim/build_optimizer.h"

namespace d9d {

std::int64_t OptimizerSizes::bytes_of(const Module& module) {
  std::int64_t bytes = 0;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter->requires_grad()) continue;
    const at::ScalarType dtype = parameter->stored().scalar_type();
    if (!of_element_.contains(dtype)) of_element_[dtype] = state_bytes(2, dtype) - state_bytes(1, dtype);
    bytes += of_element_[dtype] * parameter->stored().numel();
  }
  return bytes;
}

std::int64_t OptimizerSizes::state_bytes(std::int64_t num_elements, at::ScalarType dtype) const {
  const at::Tensor values = at::zeros({num_elements}, dtype).set_requires_grad(true);
  const Optimizer optimizer = build_optimizer(config_, {{.name = "elements",
                                                         .tensor = values,
                                                         .rows = {},
                                                         .global_shape = values.sizes().vec(),
                                                         .mesh = {},
                                                         .placements = {}}});
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : optimizer.state_dict()) {
    bytes += static_cast<std::int64_t>(tensor.local.nbytes());
  }
  return bytes;
}

}  // namespace d9d
