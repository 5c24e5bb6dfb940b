// The ranks among which the positions of each sequence are divided, and sums over all of them.
//
// Example
//   const at::Tensor sum = sum_over_positions(hidden_states.sum(1), ranks);     // [B, S / W, H] -> [B, H]
//
// Legend   B batch, S positions, H hidden size, W ranks of both kinds together
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/position_cut.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Each mesh has one axis, or none.
struct PositionRanks {
  PositionCut of_context = {};  // context parallelism, one cut: each rank has its own loss
  DeviceMesh of_shards = {};  // tensor parallelism, which divides the parts of these between blocks: all have one loss

  [[nodiscard]] std::int64_t num_parts() const { return of_context.num_ranks() * of_shards.num_ranks(); }  // W
  [[nodiscard]] PositionCut cut() const { return of_context.then(PositionCut(of_shards)); }
};

// Collective over all ranks, in forward and, over those of context parallelism, in backward. The gradient is that of
// the sum of the losses of these, each with the weight that one rank would have. Meant for a few numbers, as
// all_reduce_both().
[[nodiscard]] at::Tensor sum_over_positions(const at::Tensor& here, const PositionRanks& ranks);

}  // namespace d9d
