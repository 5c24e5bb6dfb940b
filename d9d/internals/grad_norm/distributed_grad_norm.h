// The norm of all gradients of a job, whatever their layouts: every element counts exactly once. Norms of single
// layers: part_norms.h.
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

// Parameters whose stored parts are sharded over the same ranks.
struct GradNormGroup {
  DeviceMesh shards;  // the axes with Shard or FlatShard; none: every rank holds all elements
  std::vector<ParameterPtr> parameters;
};

// Groups parameters in their order. Sharded groups come first, so that their reductions overlap with the computation of
// the other groups.
[[nodiscard]] std::vector<GradNormGroup> group_by_shards(const std::vector<ParameterPtr>& parameters);
// Returns group_by_shards() of the parameters that are trained.
[[nodiscard]] std::vector<GradNormGroup> group_parameters_for_norm(const std::vector<ParameterPtr>& parameters);

// Collective over the ranks of the groups and over `stages`, which hold different parameters. Reads stored().grad(),
// which must already be summed over ranks; parameters without a gradient count as zeros. Returns fp64, 0-dim, as
// global_grad_norm() does. The result has the same bits on all ranks, including replicas that hold the same gradients:
// ranks gather their parts, so no backend chooses the order of additions. Needs one collective for each sharded group.
// NaN on one rank gives NaN on all ranks.
[[nodiscard]] at::Tensor distributed_grad_norm(const std::vector<GradNormGroup>& groups, double order,
                                               const DeviceMesh& stages);

}  // namespace d9d
