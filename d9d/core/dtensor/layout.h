// Computes which part of a tensor a rank holds under a layout, without communication.
//
// Example
//   // [10, 8] over tp = 4, this rank at coordinate 3
//   local_box({10, 8}, mesh, {Shard{0}});     // start {9, 0}, sizes {1, 8}: chunks of 3, 3, 3, 1
//
// Shards are cut as torch.chunk cuts: all parts have ceil(n / ranks) elements, except the last ones, which may be
// shorter or empty. Shards with a unit do the same with ceil(n / unit) units, of which the last may be shorter. If
// several axes shard the same dim, the outermost axis cuts first and each further axis cuts the resulting parts.
// FlatShard is applied last: it cuts the row-major flattening of the box that the shards leave. All axes with FlatShard
// count as one axis, the outermost slowest.
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

// Elements [begin, end) of a row-major flattening.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t numel() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

// The box of the rank at `coordinate`. Throws ConfigError unless there is one placement for each axis of the mesh, and
// if a dim is not one of the shape's or a unit is not positive. Replicate, Partial and FlatShard cut nothing here.
[[nodiscard]] LocalBox local_box(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                 const Placements& placements, const std::vector<std::int64_t>& coordinate);
[[nodiscard]] LocalBox local_box(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                 const Placements& placements);  // the box of this rank

[[nodiscard]] bool has_flat_shard(const Placements& placements);

// Returns the range of the row-major order of a box of `box_numel` elements that a rank stores; the whole box without
// FlatShard.
[[nodiscard]] FlatRange flat_range(std::int64_t box_numel, const DeviceMesh& mesh, const Placements& placements,
                                   const std::vector<std::int64_t>& coordinate);
[[nodiscard]] FlatRange flat_range(std::int64_t box_numel, const DeviceMesh& mesh, const Placements& placements);

// Returns which elements of the whole tensor a rank holds, in memory order. Throws ConfigError if the layout cuts two
// dims other than the first, since the rows of the rank's part then have no single pitch.
[[nodiscard]] ElementRows element_rows(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                       const Placements& placements);

// The elements of part `index` of `num_parts` along a dim of size `size`, cut between units of `unit` elements.
[[nodiscard]] FlatRange chunk_range(std::int64_t size, std::int64_t index, std::int64_t num_parts,
                                    std::int64_t unit = 1);

}  // namespace d9d
