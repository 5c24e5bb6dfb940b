// Which elements two ranks both hold, each under its own layout: arithmetic, no communication. What redistribute()
// sends, and what of a file a rank must read.
//
// Example
//   const std::vector<LocalBox> mine = held_boxes({10, 8}, mesh, placements, mesh.coordinate());
//   for (const Overlap& part : overlaps(theirs, mine)) { part.box; }     // in global coordinates
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "d9d/core/dtensor/layout.h"

namespace d9d {

// What the rank at `coordinate` holds as boxes that do not overlap; its local tensor, read row by row, is theirs one
// after the other. One box without FlatShard; at most 2 * dims - 1 with it, none when its slice is empty.
[[nodiscard]] std::vector<LocalBox> held_boxes(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                               const Placements& placements,
                                               const std::vector<std::int64_t>& coordinate);

// Elements that lie in boxes source[i] and target[k]; never empty.
struct Overlap {
  LocalBox box;
  std::size_t source = 0;
  std::size_t target = 0;
};

// In the order of sources, for each in the order of targets: the same on whoever computes it.
[[nodiscard]] std::vector<Overlap> overlaps(const std::vector<LocalBox>& source, const std::vector<LocalBox>& target);

// Where `inner`, a box within `outer`, begins in the row-major order of outer, if its elements lie there without a gap.
[[nodiscard]] std::optional<std::int64_t> contiguous_begin(const LocalBox& outer, const LocalBox& inner);

}  // namespace d9d
