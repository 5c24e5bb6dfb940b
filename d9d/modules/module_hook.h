// What an applier (FSDP, profiling, offload) hangs on a module: it sees the tensors that enter and leave forward and
// may replace them, for instance by an identity node whose backward gathers or reshards.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

class GradientReduction;
class Module;
using TensorRefs = std::vector<std::reference_wrapper<at::Tensor>>;

class ModuleHook {
 public:
  virtual ~ModuleHook() = default;
  // After Module::materialize() gave storage to everything below: for parameters whose storage this hook provides.
  virtual void on_materialize(Module& /*module*/, at::Device /*device*/) {}
  // Before forward, outside of activation checkpointing. `inputs`: the tensor leaves of the arguments, in order.
  virtual void before_forward(Module& module, const TensorRefs& inputs) = 0;
  // After forward. `outputs`: the tensor leaves of the result.
  virtual void after_forward(Module& module, const TensorRefs& outputs) = 0;
  // What reduces the gradients of the parameters behind this hook; null: nothing.
  [[nodiscard]] virtual std::shared_ptr<GradientReduction> gradient_reduction() const { return nullptr; }
};

}  // namespace d9d
