// The first values of the magnitudes of DoRA (d9d/blocks/linear/magnitude.h), which come from loaded weights.
//
// Example
//   (void)load_model_state(*model, mapper, tensors_of(directory), {.may_be_missing = kAdapterParameters});
//   begin_magnitudes(*model);        // before training; not where a checkpoint has them
#pragma once

#include <set>
#include <string>

#include "d9d/modules/module.h"

namespace d9d {

// Sets magnitudes to the norms of the rows of W + scale * B A, as Hugging Face peft begins: the model computes as it
// does without them. but_for: names of parameters that have their values. Collective over the ranks that have parts of
// the weights, one weight after another.
void begin_magnitudes(Module& model, const std::set<std::string>& but_for = {});

}  // namespace d9d
