// Combines the pipeline stages of a rank into one module without a forward, for the optimiser, the gradient norm and
// checkpoints. Parameters keep the names that they have in their stages.
//
// If two of the stages have a parameter under the same name (a head tied to the embedding), the module contains that of
// the first stage, and the later stage computes with a copy.
//
// Example
//   const std::shared_ptr<Module> module = local_stages({first, last});
//   load(*module);
//   update_copies(copies_of({first, last}));
#pragma once

#include <memory>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/modules/module.h"

namespace d9d {

// Returns the stage itself if there is only one.
[[nodiscard]] std::shared_ptr<Module> local_stages(const std::vector<std::shared_ptr<Module>>& stages);

struct ParameterCopy {
  ParameterPtr first;  // the parameter that local_stages() contains
  ParameterPtr copy;   // the parameter of the same name in a later stage
};
[[nodiscard]] std::vector<ParameterCopy> copies_of(const std::vector<std::shared_ptr<Module>>& stages);
// Local. Copies the values of `first` to `copy`. Both have storage and the same layout.
void update_copies(const std::vector<ParameterCopy>& copies);

struct NumParameters {
  double all = 0, trained = 0;  // elements; those of parameters that require gradients
};
// Collective over the ranks of a pipeline. Counts the elements of the model of which this rank has `stages`. Parameters
// of one name are one, on several ranks too.
[[nodiscard]] NumParameters num_parameters(const Module& stages, const DistContext& context);

}  // namespace d9d
