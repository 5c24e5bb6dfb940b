// The gradient norms of the parts of a model, such as its layers, the same on every layout.
//
// Example: a task that logs them, of the gradients that the optimiser gets, divided and clipped
//   void register_events(const DistContext& context, EventBus& events) override {
//     events.subscribe(kTrainModelStagesReady, [this](const ModelStagesReady& ready) { stages = ready.modules; });
//     events.subscribe(kTrainReady, [this](const TrainReady& ready) { run = &ready.run; });
//     events.subscribe(kTrainOptimizerStepPre, [this, &context](const TrainStep& step) {     // on all ranks
//       const DeviceMesh pipeline = context.mesh(MeshDomain::kRegular).slice({"pp"});
//       for (const auto& [layer, norm] : gradient_norms(stages, by_prefix(3), pipeline)) {   // "model.layers.7"
//         run->write({.name = "grad_norm/" + layer, .step = step.schedule.current_step()}, norm);
//       }
//     });
//   }
//
// Calling distributed_grad_norm() for one part after another would be wrong in a pipeline: one call would combine the
// different layers that two stages pass to it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "d9d/core/mesh/device_mesh.h"
#include "d9d/modules/module.h"

namespace d9d {

// Returns the part to which the parameter of that name belongs; "" if it belongs to none.
using PartOfParameter = std::function<std::string(const std::string& parameter)>;

// Returns a function that gives the first `num_parts` dotted components of a name, or the whole name if it has no more.
[[nodiscard]] PartOfParameter by_prefix(std::size_t num_parts);

// Collective over all ranks. modules: this rank's stages; `stages`: the ranks of all stages. Reads stored().grad(),
// which must already be summed over ranks. Returns the L2 norm of each part of all stages, on every rank; a tied
// parameter, which several stages hold, counts once. Waits for the device.
[[nodiscard]] std::map<std::string, double> gradient_norms(const std::vector<std::reference_wrapper<Module>>& modules,
                                                           const PartOfParameter& part, const DeviceMesh& stages);

}  // namespace d9d
