// The norms of the gradients and of the parameters of the parts of a model, such as its layers, the same on every
// layout. A training job logs them by layer (LoggingConfig::norms_by_layer).
//
// Example: a loop of one's own
//   const PartNorms norms(module.named_parameters(), layer_of, context.mesh(MeshDomain::kRegular).slice({"pp"}));
//   while (...) {
//     ...                                                        // gradients are summed over ranks
//     const at::Tensor gradients = norms.of_gradients();         // on all ranks; [norms.parts().size()], on the device
//   }
//   norms.parts()[0].name;                                       // "model.layers.0"
//
// Example: a task that writes them, of the gradients that the optimiser gets, divided and clipped
//   void register_events(const DistContext& context, EventBus& events) override {
//     events.subscribe(kTrainModelStagesReady, [this](const ModelStagesReady& ready) { stages = ready.modules; });
//     events.subscribe(kTrainReady, [this](const TrainReady& ready) { run = &ready.run; });
//     events.subscribe(kTrainOptimizerStepPre, [this, &context](const TrainStep& step) {     // on all ranks
//       const DeviceMesh pipeline = context.mesh(MeshDomain::kRegular).slice({"pp"});
//       for (const auto& [part, norm] : gradient_norms(stages, by_prefix(4), pipeline)) {  // "model.layers.7.mlp"
//         run->write({.name = "clipped/" + part, .step = step.schedule.current_step()}, norm);
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
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/parameter.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/modules/module.h"

namespace d9d {

// Returns the part to which the parameter of that name belongs; "" if it belongs to none. The same on all ranks.
using PartOfParameter = std::function<std::string(const std::string& parameter)>;

// Returns a function that gives the first `num_parts` dotted components of a name, or the whole name if it has no more.
[[nodiscard]] PartOfParameter by_prefix(std::size_t num_parts);

// Returns the path of a parameter up to the first number, or else its first two components. The parameter's own name
// does not belong to its path: "model.layers.3.mlp.up_proj.weight" is in "model.layers.3", "model.norm.weight" in
// "model.norm", "head.lm_head.regular.weight" in "head.lm_head". A parameter without a path is in a layer of its name.
[[nodiscard]] std::string layer_of(const std::string& parameter);

class PartNorms {
 public:
  struct Part {
    std::string name;
    bool is_trained = false;  // whether a gradient of it is computed
  };

  // Collective over `stages`, the ranks of all stages. Waits for them. parameters: of this rank's stages, by name. A
  // parameter under a name that several stages have (tied) counts once.
  PartNorms(const std::vector<std::pair<std::string, ParameterPtr>>& parameters, const PartOfParameter& part,
            DeviceMesh stages);

  // The parts of all stages in alphabetical order, the same on all ranks.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }

  // Collective over all ranks. Returns the L2 norm of each part, on every rank: fp64 [number of parts], on the device
  // of the parameters, without waiting for it. Needs one collective for each set of ranks over which this rank's
  // parameters are sharded, and one over the stages. NaN in a part makes no other part NaN.
  // of_gradients() reads stored().grad(), which must already be summed over ranks; a missing gradient counts as zeros.
  [[nodiscard]] at::Tensor of_gradients() const;
  [[nodiscard]] at::Tensor of_parameters() const;  // reads stored(); of floating-point parameters

 private:
  struct Group {
    DeviceMesh shards;
    std::vector<std::vector<ParameterPtr>> parts;  // the parameters of each of parts()
  };
  using TensorOf = at::Tensor (*)(const Parameter& parameter);
  [[nodiscard]] at::Tensor norms_of(TensorOf tensor_of) const;
  [[nodiscard]] at::Tensor squares_of(const Group& group, TensorOf tensor_of) const;

  DeviceMesh stages_;
  at::Device device_;
  std::vector<Part> parts_;
  std::vector<Group> groups_;
};

// Collective over all ranks. modules: this rank's stages; `stages`: the ranks of all stages. Returns
// PartNorms::of_gradients() of the trained parts by name. Waits for the device.
[[nodiscard]] std::map<std::string, double> gradient_norms(const std::vector<std::reference_wrapper<Module>>& modules,
                                                           const PartOfParameter& part, const DeviceMesh& stages);

}  // namespace d9d
