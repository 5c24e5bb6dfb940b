// Changes of layout without autograd: what redistribute() is made of.
//
// Example
//   const at::Tensor whole = move_elements(local, shape, mesh, {Shard{0}}, {Replicate{}});   // one all_gather
//
// Partial placements stay what they are unless a function says otherwise: each summand moves like a value. `local` has
// the shape of its layout, and any strides; results are contiguous, or `local` itself where nothing changes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"

namespace d9d {

// Axes, as indices in order, along which elements must travel between two layouts; none: each rank holds already what
// it needs. Partial counts as Replicate here, and so does what stands on an axis of one rank.
[[nodiscard]] std::vector<std::size_t> travel_axes(const DeviceMesh& mesh, const Placements& from,
                                                   const Placements& to);

// Collective over travel_axes, by at most one operation: all_gather if all of these end as Replicate, else all_to_all.
[[nodiscard]] at::Tensor move_elements(const at::Tensor& local, const std::vector<std::int64_t>& global_shape,
                                       const DeviceMesh& mesh, const Placements& from, const Placements& to);

// Collective over `axes`, all of them Partial(op) in `from`: one reduce_scatter (all_reduce if all axes end as
// Replicate) makes them what they are in `to`; other axes are the same in both. Requires travel_axes to be empty.
[[nodiscard]] at::Tensor reduce_elements(const at::Tensor& local, const std::vector<std::int64_t>& global_shape,
                                         const DeviceMesh& mesh, const Placements& from, const Placements& to,
                                         const std::vector<std::size_t>& axes, ReduceOp op);

// The shape of the local tensor under a layout.
[[nodiscard]] std::vector<std::int64_t> local_shape(const std::vector<std::int64_t>& global_shape,
                                                    const DeviceMesh& mesh, const Placements& placements);

}  // namespace d9d
