// Finds where NaN or infinity comes from: every module checks what it computes.
//
// Example
//   detect_non_finite(*model);          // trainer.detect_non_finite
//   loss.backward();                    // StateError: ... NaN or infinity in the output of layers.3.mlp.up ...
#pragma once

#include "d9d/modules/module.h"

namespace d9d {

// Local. From now on each call of a module below through its ModulePtr throws StateError if its output has NaN or
// infinity, and backward if the gradient of its output has. The error names the module that ends first, which is the
// innermost one, and those of its parameters that are not finite. Waits for the device at every module; blocks that
// would otherwise compute several modules together compute each on its own.
void detect_non_finite(Module& module);

}  // namespace d9d
