// The pipeline stages of a rank as one module, whose parameters have the names that they have in their stages: for the
// optimiser, the norm of gradients, checkpoints. It has no forward.
//
// Example
//   const std::shared_ptr<Module> module = local_stages({first, last});
#pragma once

#include <memory>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

// Of one stage, that one.
[[nodiscard]] std::shared_ptr<Module> local_stages(const std::vector<std::shared_ptr<Module>>& stages);

}  // namespace d9d
