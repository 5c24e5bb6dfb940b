// Computes which elements two ranks both hold, each under its own layout, without communication. The result determines
// what redistribute() sends, and which part of a file a rank must read.
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

// Returns the elements that the rank at `coordinate` holds as disjoint boxes. The rank's local tensor consists of these
// boxes one after the other, each in row-major order. Without FlatShard there is one box; with FlatShard at most 2 *
// dims - 1, and none if the slice is empty.
[[nodiscard]] std::vector<LocalBox> held_boxes(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                               const Placements& placements,
                                               const std::vector<std::int64_t>& coordinate);

// Returns elements [range.begin, range.end) of the row-major order of `box` as at most 2 * dims - 1 disjoint boxes, in
// that order.
[[nodiscard]] std::vector<LocalBox> boxes_of_range(const LocalBox& box, const FlatRange& range);

// The elements that boxes source[`source`] and target[`target`] have in common; never empty.
struct BoxIntersection {
  LocalBox box;
  std::size_t source = 0;
  std::size_t target = 0;
};

// Returns all intersections, ordered by source, then by target, so that all ranks compute the same list.
[[nodiscard]] std::vector<BoxIntersection> intersections(const std::vector<LocalBox>& source,
                                                         const std::vector<LocalBox>& target);

// Whether an element lies in both boxes, of the same dims.
[[nodiscard]] bool have_common_elements(const LocalBox& a, const LocalBox& b);

// Whether no element lies in two of the boxes, which must not be empty. Takes n log n steps for the boxes of layouts (a
// grid, ranges of rows), and n^2 for boxes that no plane separates.
[[nodiscard]] bool are_disjoint(const std::vector<LocalBox>& boxes);

// The position of `inner`, a box within `outer`, in the row-major order of outer, if its elements are contiguous there.
[[nodiscard]] std::optional<std::int64_t> contiguous_begin(const LocalBox& outer, const LocalBox& inner);

// The range of positions in the row-major order of `outer`, from the first element of `inner` to one past its last.
// `inner` is a non-empty box within outer.
[[nodiscard]] FlatRange flat_extent(const LocalBox& outer, const LocalBox& inner);

}  // namespace d9d
