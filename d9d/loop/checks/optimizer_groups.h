// Checks that each group of an optimiser's parameters has some, and logs how many.
//
// Example
//   check_groups(context, groups_of(config.optimizer), trainable_parameters(*model).parameters);
//   // parameters of the optimiser: head 1 of 32768 elements, default 25 of 1310720; without weight decay 11 of 1408
#pragma once

#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/optim/parameter_groups.h"

namespace d9d {

// Collective over the ranks of a pipeline. `parameters`: those that this rank's stages train. They are counted as
// whole, and once if several stages have them. The main process logs the counts, unless there is one group alone.
// Throws ConfigError on all ranks for a group that matches no parameter of any stage.
void check_groups(const DistContext& context, const ParameterGroups& groups,
                  const std::vector<NamedParameter>& parameters);

}  // namespace d9d
