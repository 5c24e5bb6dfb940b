// Between layouts: a whole tensor to its parts and back, and from one layout to any other, also in backward.
//
// Example
//   const DTensor weight = distribute(full, mesh, {Replicate{}, Shard{0}});      // local; every rank has `full`
//   const at::Tensor again = full_tensor(weight);                                // bit for bit
//   // sequence shards -> the whole sequence -> each tp rank computes with its columns of the weight
//   const DTensor x = redistribute(shards, {Replicate{}}, {.gradient_placements = Placements{Partial{}}});
//
// What it costs, an axis: Replicate -> Shard nothing; Shard -> Replicate one all_gather; Partial -> Replicate one
// all_reduce; Partial -> Shard one reduce_scatter; Shard(a) -> Shard(b) one all_to_all. Any set of axes that only moves
// elements takes one operation; reductions take one for each op and kind. Axes of one rank cost nothing.
//
// Results are contiguous, or the input where nothing changes. Only one kind of reduction at a time has a meaning:
// Partial(max), Partial(min) and the sums (sum, avg) on different axes of a tensor are a ConfigError.
//
// Becoming Partial: sum leaves the value on coordinate 0 of the axis and zeros elsewhere; avg, max and min leave it
// everywhere.
#pragma once

#include <optional>

#include "d9d/core/dtensor/dtensor.h"

namespace d9d {

// How gradients cross a redistribution: which layout the gradient of the result's local tensor has when it arrives in
// backward, and which the gradient of the input's local tensor is to have when it leaves. A gradient is cut as its
// tensor is; where the tensor is Replicate or Partial it is one of
//   Replicate      every rank of the axis has the whole gradient: all computed the same from their copies
//   Partial(sum)   every rank has what its own use of its copy contributed
// Partial(avg) tensors have 1 / ranks of the value's gradient on each rank.
struct RedistributeOptions {
  std::optional<Placements> gradient_placements;        // none: as the result, with Replicate for Partial
  std::optional<Placements> input_gradient_placements;  // none: as the input, with Replicate for Partial
};

// Local, and not differentiable. `full` is the same on all ranks of the mesh; where nothing is cut, the result is
// `full`.
[[nodiscard]] DTensor distribute(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements);

// Collective, and in backward again if `x` requires gradients, on all ranks alike. Gradients of Partial(max) and
// Partial(min) are refused, and so are gradients of gradients. Throws ConfigError for placements that do not fit the
// mesh or the shape, StateError for a local tensor that does not fit its layout.
[[nodiscard]] DTensor redistribute(const DTensor& x, const Placements& placements,
                                   const RedistributeOptions& options = {});

// Collective: redistribute() to Replicate on all axes.
[[nodiscard]] at::Tensor full_tensor(const DTensor& x, const RedistributeOptions& options = {});

}  // namespace d9d
