// A hook that a feature (FSDP, profiling, offload) adds to a module. It sees the tensors that enter and leave forward
// and may replace them, for instance by an identity node whose backward gathers or reshards.
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
  // Called after Module::materialize() has allocated storage for all modules below: for parameters whose storage this
  // hook provides.
  virtual void on_materialize(Module& /*module*/, at::Device /*device*/) {}
  // Called before forward, outside of activation checkpointing. `inputs`: the tensor leaves of the arguments, in order.
  virtual void before_forward(Module& module, const TensorRefs& inputs) = 0;
  // Called after forward. `outputs`: the tensor leaves of the result.
  virtual void after_forward(Module& module, const TensorRefs& outputs) = 0;
  // The reduction that sums the gradients of this hook's parameters; null: none.
  [[nodiscard]] virtual std::shared_ptr<GradientReduction> gradient_reduction() const { return nullptr; }
};

}  // namespace d9d
