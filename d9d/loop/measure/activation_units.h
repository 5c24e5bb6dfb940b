// The units of a stage whose activations are planned (Module::activation_plans), and which of them cost the same.
//
// Example
//   for (Module* const layer : activation_units(*stage)) layer->set_activation_plan({Recompute::kAll});
#pragma once

#include <string>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

// Returns the modules below `stage` that have plans, in their order, without those inside another of them.
[[nodiscard]] std::vector<Module*> activation_units(Module& stage);

// Units of a stage that cost the same: of one class, with parameters of the same shapes, dtypes and requires_grad;
// frozen ones before all that are trained apart from those behind, which keep activations.
struct AlikeUnits {
  std::string name = {};            // of the first of them in the stage
  std::vector<Module*> units = {};  // in the order of the stage; borrowed
  std::vector<ActivationPlan> plans = {};
};

// Returns the units of `stage` in groups, in the order of their first units.
[[nodiscard]] std::vector<AlikeUnits> alike_units(Module& stage);

}  // namespace d9d
