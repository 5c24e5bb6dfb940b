// Which parameters are trained is fixed while a job is built: FSDP, gradient reduction and the optimiser read it then
// and never again. A parameter that is frozen or thawed later would continue to move by its momentum, or get gradients
// that nothing sums, clears or applies.
//
// Example
//   const FreezeGuard guard(module->named_parameters());
//   ...                                                        // steps
//   guard.check();                                             // StateError: "... requires_grad = 1 of head.weight"
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "d9d/core/dtensor/parameter.h"

namespace d9d {

// Throws StateError unless the parameter's requires_grad equals `requires_grad`, its value when the job was built.
void check_requires_grad(const std::string& name, const Parameter& parameter, bool requires_grad);

class FreezeGuard {
 public:
  FreezeGuard() = default;  // of no parameters
  explicit FreezeGuard(const std::vector<std::pair<std::string, ParameterPtr>>& parameters);

  // Local. StateError for the first parameter that was frozen or thawed since the construction.
  void check() const;

 private:
  struct Entry {
    std::string name;
    ParameterPtr parameter;
    bool requires_grad;
  };
  std::vector<Entry> entries_;
};

}  // namespace d9d
