#include "d9d/loop/graphs/module_memory.h"

#include <utility>

#include <ATen/ATen.h>

namespace d9d::detail {

ModuleMemory::ModuleMemory(Module& module) : reductions_(gradient_reductions(module)) {
  for (const auto& [name, parameter] : module.named_parameters()) parameters_.push_back(parameter);
  for (const auto& [name, buffer] : module.named_buffers()) buffers_.push_back(buffer);
}

bool ModuleMemory::has_changed() {
  std::vector<const void*> addresses;
  std::vector<bool> are_trained;
  const auto add = [&](const at::Tensor& tensor) {
    addresses.push_back(tensor.defined() ? tensor.const_data_ptr() : nullptr);
  };
  for (const ParameterPtr& parameter : parameters_) {
    add(parameter->local());
    are_trained.push_back(parameter->requires_grad());
  }
  for (const BufferPtr& buffer : buffers_) add(buffer->local);
  std::int64_t num_closings = 0;
  for (const auto& reduction : reductions_) num_closings += reduction->num_closings();
  const bool has_changed = addresses != addresses_ || are_trained != are_trained_ || num_closings != num_closings_;
  addresses_ = std::move(addresses);
  are_trained_ = std::move(are_trained);
  num_closings_ = num_closings;
  return has_changed;
}

}  // namespace d9d::detail
