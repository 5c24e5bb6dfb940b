// Which part of a tensor a rank holds under a layout: arithmetic, no communication.
//
// Example
//   // [10, 8] over tp = 4, this rank at coordinate 3
//   local_box({10, 8}, mesh, {Shard{0}});     // start {9, 0}, sizes {1, 8}: chunks of 3, 3, 3, 1
//
// Shards are cut as torch.chunk cuts: all of ceil(n / ranks), the last ones shorter or empty. Several axes that shard
// the same dim cut each other's parts, the outermost axis first. FlatShard comes last: it cuts the row-major flattening
// of the box that the shards leave; axes with FlatShard count as one, the outermost slowest.
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/core/dtensor/placement.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/core/rng/random_stream.h"

namespace d9d {

// Elements [start_d, start_d + sizes_d) in each dim d of the global tensor.
struct LocalBox {
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> sizes;
  [[nodiscard]] std::int64_t numel() const;
  bool operator==(const LocalBox&) const = default;
};

// Elements [begin, end) of a flattening.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t numel() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

// One placement an axis of the mesh; throws ConfigError otherwise, and for a dim that the shape has not. Replicate,
// Partial and FlatShard cut nothing here. `coordinate`: of the rank asked about.
[[nodiscard]] LocalBox local_box(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                 const Placements& placements, const std::vector<std::int64_t>& coordinate);
[[nodiscard]] LocalBox local_box(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                 const Placements& placements);  // of this rank

[[nodiscard]] bool has_flat_shard(const Placements& placements);

// What of a box of `box_numel` elements a rank holds flat: all of it without FlatShard.
[[nodiscard]] FlatRange flat_range(std::int64_t box_numel, const DeviceMesh& mesh, const Placements& placements,
                                   const std::vector<std::int64_t>& coordinate);
[[nodiscard]] FlatRange flat_range(std::int64_t box_numel, const DeviceMesh& mesh, const Placements& placements);

// Which elements of the whole tensor a rank holds, in the order of its memory. Throws ConfigError for a layout whose
// rows do not lie evenly: one that cuts two dims behind the first.
[[nodiscard]] ElementRows element_rows(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                       const Placements& placements);

// Elements of one dim of size `size` that part `index` of `num_parts` has.
[[nodiscard]] FlatRange chunk_range(std::int64_t size, std::int64_t index, std::int64_t num_parts);

}  // namespace d9d
