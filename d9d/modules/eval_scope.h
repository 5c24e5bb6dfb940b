// Puts modules into evaluation mode for the length of a scope.
//
// Example
//   {
//     const EvalScope evaluation({model.shared()});
//     const at::NoGradGuard no_grad;
//     ...                                    // forwards in which Dropout does nothing
//   }                                        // each module has its own mode again
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

class EvalScope {
 public:
  // Calls eval() on the modules; the modules below them follow.
  explicit EvalScope(const std::vector<std::shared_ptr<Module>>& modules);
  ~EvalScope();
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  const std::vector<std::shared_ptr<Module>> modules_;
  std::vector<std::pair<Module*, bool>> were_training_;
};

}  // namespace d9d
