// Which elements two ranks both hold, each under its own layout: arithmetic, no communication. Determines what
// redistribute() sends, and which part of a file a rank must read.
//
// Example
//   const std::vector<LocalBox> mine = held_boxes({10, 8}, mesh, placements, mesh.coordinate());
//   for (const BoxIntersection& part : intersections(theirs, mine)) { part.box; }     // in global coordinates
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "d9d/core/dtensor/layout.h"

namespace d9d {

// The elements that the rank at `coordinate` holds, as disjoint boxes; its local tensor, read row by row, consists of
// the boxes one after the other. Without FlatShard there is one box; with it at most 2 * dims - 1, and none if the
// slice is empty.
[[nodiscard]] std::vector<LocalBox> held_boxes(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                               const Placements& placements,
                                               const std::vector<std::int64_t>& coordinate);

// Elements [range.begin, range.end) of the row-major order of `box`, as disjoint boxes in that order: at most
// 2 * dims - 1.
[[nodiscard]] std::vector<LocalBox> boxes_of_range(const LocalBox& box, const FlatRange& range);

// Elements that lie in boxes source[i] and target[k]; never empty.
struct BoxIntersection {
  LocalBox box;
  std::size_t source = 0;
  std::size_t target = 0;
};

// Ordered by source, then by target: the same on every rank that computes it.
[[nodiscard]] std::vector<BoxIntersection> intersections(const std::vector<LocalBox>& source,
                                                         const std::vector<LocalBox>& target);

// Whether an element lies in both boxes, of the same dims.
[[nodiscard]] bool have_common_elements(const LocalBox& a, const LocalBox& b);

// Whether no element lies in two of the boxes, which are not empty. Boxes as layouts make them (a grid, ranges of rows)
// take n log n steps; others that no line along a dim divides are compared in pairs.
[[nodiscard]] bool are_disjoint(const std::vector<LocalBox>& boxes);

// The position of `inner`, a box within `outer`, in the row-major order of outer, if its elements are contiguous there.
[[nodiscard]] std::optional<std::int64_t> contiguous_begin(const LocalBox& outer, const LocalBox& inner);

// The range of positions in the row-major order of `outer`, from the first element of `inner` to one past its last.
// `inner` is a non-empty box within outer.
[[nodiscard]] FlatRange flat_extent(const LocalBox& outer, const LocalBox& inner);

}  // namespace d9d
