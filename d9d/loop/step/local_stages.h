// The pipeline stages of a rank as one module, whose parameters have the names that they have in their stages: for the
// optimiser, the norm of gradients, checkpoints. It has no forward.
//
// Of a parameter that two of the stages have under one name (a head tied to the embedding) the module has the first
// stage's. The later stage computes with a copy.
//
// Example
//   const std::shared_ptr<Module> module = local_stages({first, last});
//   load(*module);
//   update_copies(copies_of({first, last}));
#pragma once

#include <memory>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

// Of one stage, that one.
[[nodiscard]] std::shared_ptr<Module> local_stages(const std::vector<std::shared_ptr<Module>>& stages);

struct ParameterCopy {
  ParameterPtr first;  // of the module
  ParameterPtr copy;   // of a later stage
};
[[nodiscard]] std::vector<ParameterCopy> copies_of(const std::vector<std::shared_ptr<Module>>& stages);
// Local. Both have storage and the same layout.
void update_copies(const std::vector<ParameterCopy>& copies);

}  // namespace d9d
