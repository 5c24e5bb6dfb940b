#include "d9d/loop/measure/optimizer_sizes.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

namespace d9d {

std::int64_t OptimizerSizes::bytes_of(const Module& module) {
  std::int64_t bytes = 0;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter->requires_grad()) continue;
    const Kind kind(parameter->stored().scalar_type(), parameter->role(), parameter->global_shape().size(),
                    groups_.index_of(name));
    if (!of_element_.contains(kind)) {
      of_element_[kind] = state_bytes(name, *parameter, 2) - state_bytes(name, *parameter, 1);
    }
    bytes += of_element_[kind] * parameter->stored().numel();
  }
  return bytes;
}

std::int64_t OptimizerSizes::state_bytes(const std::string& name, const Parameter& like,
                                         std::int64_t num_elements) const {
  std::vector<std::int64_t> shape(std::max<std::size_t>(1, like.global_shape().size()), 1);
  shape[0] = num_elements;
  const at::Tensor values = at::zeros(shape, like.stored().scalar_type()).set_requires_grad(true);
  const Optimizer optimizer =
      build_optimizer(config_, {{.name = name, .tensor = values, .global_shape = shape, .role = like.role()}});
  std::int64_t bytes = 0;
  for (const auto& [slot, tensor] : optimizer.state_dict()) {
    bytes += static_cast<std::int64_t>(tensor.local.nbytes());
  }
  return bytes;
}

std::int64_t bytes_of_averages(const Module& module) {
  std::int64_t bytes = 0;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter->requires_grad()) continue;
    const auto wide = static_cast<std::int64_t>(elementSize(at::toOpMathType(parameter->stored().scalar_type())));
    bytes += wide * parameter->stored().numel();
  }
  return bytes;
}

}  // namespace d9d
