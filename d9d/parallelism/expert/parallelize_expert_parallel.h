// Experts on different ranks (Lepikhin et al., GShard, arXiv:2006.16668): each holds a part of them, tokens travel.
//
// Example
//   parallelize_expert_parallel(*layer->mlp, context.mesh(MeshDomain::kExpert));
#pragma once

#include <string>

#include "d9d/blocks/moe/moe_layer.h"

namespace d9d {

// Local, on the meta device, before FSDP. Experts' weights become Shard(0) over `shard_axis` of the expert mesh, and so
// do their gradients: tokens of all its ranks come to the owner. Router and shared expert are not touched. Throws
// ConfigError unless the ranks of the axis divide the number of experts.
void parallelize_expert_parallel(MoELayer& layer, const DeviceMesh& expert_mesh,
                                 const std::string& shard_axis = "ep_shard");

}  // namespace d9d
