// Expert parallelism (Lepikhin et al., GShard, arXiv:2006.16668): each rank holds a part of the experts, and tokens are
// sent to the ranks of their experts.
//
// Example
//   parallelize_expert_parallel(*layer->mlp, context.mesh(MeshDomain::kExpert));
#pragma once

#include <string>

#include "d9d/blocks/moe/moe_layer.h"

namespace d9d {

// Local; call it on the meta device, before tensor parallelism and FSDP. Experts' weights become Shard(0) over
// `shard_axis` of the expert mesh. So do their gradients, because the owner of an expert gets the tokens of all ranks
// of the axis. Router and shared expert do not change. Throws ConfigError unless the number of ranks of the axis
// divides the number of experts.
void parallelize_expert_parallel(MoELayer& layer, const DeviceMesh& expert_mesh,
                                 const std::string& shard_axis = "ep_shard");

// Local; call it on the meta device, before tensor parallelism and FSDP. Lays out every MoELayer in `module`: it counts
// the tokens of `count_ranks`, and its experts are divided over `shard_axis`, as above, if this has more than one rank.
void parallelize_expert_parallel(Module& module, const DeviceMesh& expert_mesh, const MoELayer::CountRanks& count_ranks,
                                 const std::string& shard_axis = "ep_shard");

}  // namespace d9d
