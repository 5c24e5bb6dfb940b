// Shards parameters, gradients and optimiser state over data-parallel ranks (ZeRO stage 3, Rajbhandari et al.,
// arXiv:1910.02054), in the manner of FSDP (Zhao et al., arXiv:2304.11277).
//
// Example
//   auto fsdp = std::make_shared<FsdpRuntime>(FsdpConfig{});
//   parallelize_fsdp(fsdp, {{layer.shared()}, {{.mesh = dense, .shard_axis = "dp_cp_shard"}}});
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "d9d/parallelism/fsdp/fsdp_runtime.h"

namespace d9d {

struct FsdpUnitSpec {
  std::string name;  // for messages
  // Gathered before the first one's forward, resharded after the last one's. Declared in the order of forward.
  std::vector<std::shared_ptr<Module>> modules;
  // One a domain. A parameter that lies on a mesh already is cut over the entry with that mesh, others over the first.
  std::vector<FsdpAxes> axes;
  // Gathered from the first use in forward to the last in backward: for modules that share parameters with others in
  // between.
  bool stays_gathered = false;
};

// Local, on the meta device. Parameters of the modules that belong to an earlier unit stay there. Parameters of one
// dtype, trained or frozen, over the same axes form a flat group; those whose gradients are Partial over further axes
// (norms under tensor parallelism) form one of their own, which is summed over these too. After this, requires_grad and
// dtype must not change. Throws StateError after materialize, and ConfigError when no parameter is left or no entry of
// axes has a parameter's mesh.
void parallelize_fsdp(const std::shared_ptr<FsdpRuntime>& runtime, const FsdpUnitSpec& unit);

}  // namespace d9d
