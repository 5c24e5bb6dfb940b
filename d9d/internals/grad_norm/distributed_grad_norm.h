// The norm of all gradients of a job, whatever their layouts: every element counts once.
//
// Example
//   const std::vector<GradNormGroup> groups = group_parameters_for_norm(parameters);
//   const at::Tensor norm = distributed_grad_norm(groups, 2.0, context.mesh(MeshDomain::kRegular).slice({"pp"}));
#pragma once

#include <vector>

#include "d9d/core/dtensor/parameter.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/internals/grad_norm/grad_norm.h"

namespace d9d {

// Parameters whose stored parts are cut over the same ranks.
struct GradNormGroup {
  DeviceMesh shards;  // the axes with Shard or FlatShard; none: every rank has all
  std::vector<ParameterPtr> parameters;
};

// Those that are trained, in the order given; groups that are cut first, so that their sums travel while others are
// computed.
[[nodiscard]] std::vector<GradNormGroup> group_parameters_for_norm(const std::vector<ParameterPtr>& parameters);

// Collective over the ranks of the groups and over `stages`, which hold different parameters. Reads stored().grad(),
// whose sums over ranks are done; parameters without one count as zeros. Otherwise as global_grad_norm: fp64, 0-dim,
// the same on all ranks, one reduction a group that is cut. NaN on one rank is NaN on all, whatever the backend's
// maximum makes of it.
[[nodiscard]] at::Tensor distributed_grad_norm(const std::vector<GradNormGroup>& groups, double order,
                                               const DeviceMesh& stages);

}  // namespace d9d
