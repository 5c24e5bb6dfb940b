// Detects changes of a module that make its captured CUDA graphs invalid.
//
// Example
//   if (memory.has_changed()) graphs.clear();
#pragma once

#include <vector>

#include "d9d/modules/module.h"

namespace d9d::detail {

// The addresses of a module's parameters and buffers, and which parameters are trained.
class ModuleMemory {
 public:
  explicit ModuleMemory(const Module& module);
  // Returns whether an address or a requires_grad has changed since the previous call. Throws c10::Error if a tensor is
  // offloaded (offload.h).
  [[nodiscard]] bool has_changed();

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<BufferPtr> buffers_;
  std::vector<const void*> addresses_;
  std::vector<bool> are_trained_;  // requires_grad of each parameter
};

}  // namespace d9d::detail
