// Detects changes of a module that make its captured CUDA graphs invalid.
//
// Example
//   if (memory.has_changed()) graphs.clear();
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "d9d/modules/gradient_reduction.h"
#include "d9d/modules/module.h"

namespace d9d::detail {

// The addresses of a module's parameters and buffers, which parameters are trained, and how often its reductions have
// given memory back.
class ModuleMemory {
 public:
  explicit ModuleMemory(Module& module);
  // Returns whether one of these has changed since the previous call. Throws c10::Error if a tensor is offloaded
  // (offload.h).
  [[nodiscard]] bool has_changed();

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<BufferPtr> buffers_;
  std::vector<std::shared_ptr<GradientReduction>> reductions_;
  std::vector<const void*> addresses_;
  std::vector<bool> are_trained_;  // requires_grad of each parameter
  std::int64_t num_closings_ = 0;  // of all reductions
};

}  // namespace d9d::detail
