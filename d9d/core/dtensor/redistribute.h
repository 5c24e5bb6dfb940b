// Changes the layouts of tensors: from a whole tensor to its parts and back, and from any layout to any other, with
// gradients.
//
// Example
//   const DTensor weight = distribute(full, mesh, {Replicate{}, Shard{0}});      // local; every rank has `full`
//   const at::Tensor again = full_tensor(weight);                                // bit for bit
//   // sequence shards -> the whole sequence -> each tp rank computes with its columns of the weight
//   const DTensor x = redistribute(shards, {Replicate{}}, {.gradient_placements = Placements{Partial{}}});
//
// Cost of an axis: Replicate -> Shard nothing; Shard -> Replicate one all_gather; Partial -> Replicate one all_reduce;
// Partial -> Shard one reduce_scatter; Shard(a) -> Shard(b) one all_to_all. Any set of axes that only moves elements
// takes one operation; reductions take one for each op and kind. Axes of one rank cost nothing.
//
// Results are contiguous, or the input if nothing changes. A tensor can have only one kind of reduction:
// Partial(max), Partial(min) and the sums (sum, avg) on different axes of a tensor are a ConfigError.
//
// When an axis becomes Partial, sum leaves the value on coordinate 0 of the axis and zeros elsewhere; avg, max and min
// leave the value everywhere.
#pragma once

#include <optional>

#include "d9d/core/dtensor/dtensor.h"

namespace d9d {

// How gradients pass a redistribution: the layout in which backward receives the gradient of the result's local tensor,
// and the layout in which it must return the gradient of the input's local tensor. A gradient is sharded in the same
// way as its tensor. Where the tensor is Replicate or Partial, its gradient is one of
//   Replicate      every rank of the axis has the whole gradient: all computed the same from their copies
//   Partial(sum)   every rank has the contribution of its own use of its copy
// On each rank the gradient of a Partial(avg) tensor is 1 / ranks of the value's gradient.
struct RedistributeOptions {
  std::optional<Placements> gradient_placements;        // none: as the result, with Replicate in place of Partial
  std::optional<Placements> input_gradient_placements;  // none: as the input, with Replicate in place of Partial
};

// Local, and not differentiable. `full` is the same on all ranks of the mesh. If nothing is cut, the result is `full`.
[[nodiscard]] DTensor distribute(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements);

// Collective in forward, and in backward if `x` requires gradients; either all ranks or none require them. Gradients
// of Partial(max) and Partial(min) are refused, and so are gradients of gradients. Throws ConfigError for placements
// that do not fit the mesh or the shape, StateError for a local tensor that does not fit its layout.
[[nodiscard]] DTensor redistribute(const DTensor& x, const Placements& placements,
                                   const RedistributeOptions& options = {});

// Collective. Calls redistribute() to Replicate on all axes.
[[nodiscard]] at::Tensor full_tensor(const DTensor& x, const RedistributeOptions& options = {});

}  // namespace d9d
