// Which parameters are trained is settled while a job is built: what reads it then (FSDP, sums of gradients, the
// optimiser) does not look again. A parameter that is frozen or thawed later would go on moving by its momentum, or get
// gradients that nothing sums, clears or applies.
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

// StateError unless the parameter requires a gradient if and only if it did: requires_grad.
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
