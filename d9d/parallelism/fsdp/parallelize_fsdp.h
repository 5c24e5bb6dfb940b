// Shards parameters, gradients and optimiser state over data-parallel ranks (ZeRO stage 3, Rajbhandari et al.,
// arXiv:1910.02054), in the manner of FSDP (Zhao et al., arXiv:2304.11277).
//
// Example
//   auto fsdp = std::make_shared<FsdpRuntime>(FsdpConfig{});
//   parallelize_fsdp(fsdp, {.name = "layer",
//                           .modules = {layer.shared()},
//                           .axes = {{.mesh = dense, .shard_axis = "dp_cp_shard"}}});
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "d9d/parallelism/fsdp/fsdp_runtime.h"

namespace d9d {

struct FsdpUnitSpec {
  std::string name;  // for errors
  // The modules in the order of forward. All are gathered before the forward of the first module and resharded after
  // the forward of the last module.
  std::vector<std::shared_ptr<Module>> modules;
  // One entry per mesh. A parameter that is placed on a mesh already is sharded over the entry with that mesh, any
  // other parameter over the first entry.
  std::vector<FsdpAxes> axes;
  // Keeps the unit gathered from its first use in forward to its last use in backward, for modules that share
  // parameters but have other units between them.
  bool stays_gathered = false;
  // Those of the parameters that form flat groups without the others, so that another unit that has them too, of
  // another pipeline stage, shards them alike.
  std::vector<ParameterPtr> apart = {};
};

// Local; call it on the meta device. Parameters of the modules that belong to an earlier unit stay there. Parameters of
// one dtype, all trained or all frozen, all apart or none, over the same axes form a flat group. Parameters whose
// gradients are Partial over further axes (norms under tensor parallelism) form a group of their own, which is summed
// over these axes too. After this call requires_grad and dtype must not change. Throws StateError after materialize(),
// and ConfigError if no parameter is left or no entry of axes has a parameter's mesh.
void parallelize_fsdp(const std::shared_ptr<FsdpRuntime>& runtime, const FsdpUnitSpec& unit);

}  // namespace d9d
