// A tensor that is distributed over the ranks of a mesh, as one rank holds it: the rank's part and the layout of the
// whole tensor. It has no operators: compute code uses `local` and changes layouts with redistribute().
//
// Example
//   const DTensor weight = distribute(full, mesh, {Replicate{}, Shard{0}});     // every rank has `full`
//   const at::Tensor again = full_tensor(weight);                               // bit for bit
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"

namespace d9d {

struct DTensor {
  at::Tensor local;  // the box of core/dtensor/layout.h; one-dimensional under FlatShard
  DeviceMesh mesh;
  Placements placements;  // one per axis
  std::vector<std::int64_t> global_shape;
};

// A DTensor that every rank has whole, on a mesh without axes. Shares the storage.
[[nodiscard]] inline DTensor whole_dtensor(const at::Tensor& tensor) {
  return {.local = tensor, .mesh = {}, .placements = {}, .global_shape = tensor.sizes().vec()};
}

}  // namespace d9d
