// Changes of layout without autograd, the building blocks of redistribute().
//
// Example
//   const at::Tensor whole = move_elements(local, shape, mesh, {Shard{0}}, {Replicate{}});   // one all_gather
//
// Partial placements stay as they are unless a function says otherwise: each summand is moved like a value. `local` has
// the shape of its layout and any strides; results are contiguous, or `local` itself where nothing changes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"

namespace d9d {

// The coordinates of the ranks that differ from this one only in the given axes (ascending indices), in the order of
// DeviceMesh::slice().ranks().
[[nodiscard]] std::vector<std::vector<std::int64_t>> coordinates_along(const DeviceMesh& mesh,
                                                                       const std::vector<std::size_t>& axes);

// The axes, as ascending indices, along which elements must be communicated between two layouts. Empty: each rank
// already holds what it needs. Partial counts as Replicate here, and so does any placement on an axis of one rank.
[[nodiscard]] std::vector<std::size_t> travel_axes(const DeviceMesh& mesh, const Placements& from,
                                                   const Placements& to);

// Collective over travel_axes. Needs at most one operation: all_gather if all of these axes end as Replicate, else
// all_to_all.
[[nodiscard]] at::Tensor move_elements(const at::Tensor& local, const std::vector<std::int64_t>& global_shape,
                                       const DeviceMesh& mesh, const Placements& from, const Placements& to);

// Collective over `axes`, all of which are Partial(op) in `from`. One reduce_scatter (all_reduce if all axes end as
// Replicate) gives them their placements of `to`; other axes are the same in both. Requires travel_axes to be empty.
[[nodiscard]] at::Tensor reduce_elements(const at::Tensor& local, const std::vector<std::int64_t>& global_shape,
                                         const DeviceMesh& mesh, const Placements& from, const Placements& to,
                                         const std::vector<std::size_t>& axes, ReduceOp op);

// The shape of the local tensor under a layout.
[[nodiscard]] std::vector<std::int64_t> local_shape(const std::vector<std::int64_t>& global_shape,
                                                    const DeviceMesh& mesh, const Placements& placements);

}  // namespace d9d
