#include "d9d/core/dtensor/box_intersection.h"

#include <algorithm>
#include <span>

#include "d9d/base/rounding.h"

namespace d9d {
namespace {

// Appends elements [range.begin, range.end) of the row-major order of `box` as boxes; dims before `dim` have size 1.
void append_boxes(const LocalBox& box, std::size_t dim, FlatRange range, std::vector<LocalBox>& result) {
  if (range.numel() <= 0) return;
  if (range.numel() == box.numel()) {
    result.push_back(box);
    return;
  }
  const std::int64_t row = box.numel() / box.sizes[dim];
  const auto rows = [&](std::int64_t first, std::int64_t last) {
    LocalBox part = box;
    part.start[dim] += first;
    part.sizes[dim] = last - first;
    return part;
  };
  const std::int64_t first = range.begin / row;
  if (range.end <= (first + 1) * row) {  // the range lies within one row
    append_boxes(rows(first, first + 1), dim + 1, {range.begin - first * row, range.end - first * row}, result);
    return;
  }
  const std::int64_t first_whole = divide_up(range.begin, row);
  const std::int64_t last_whole = range.end / row;
  append_boxes(rows(first, first + 1), dim + 1, {range.begin - first * row, (first_whole - first) * row}, result);
  append_boxes(rows(first_whole, last_whole), dim, {0, (last_whole - first_whole) * row}, result);
  append_boxes(rows(last_whole, last_whole + 1), dim + 1, {0, range.end - last_whole * row}, result);
}

using BoxSpan = std::span<const LocalBox*>;

bool are_disjoint_pairs(BoxSpan boxes) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (have_common_elements(*boxes[i], *boxes[k])) return false;
    }
  }
  return true;
}

// Sorts the boxes along `dim` and cuts them into parts wherever no box crosses the cut; continues with each part along
// the next dim. Compares all pairs of a part once `num_left` dims in a row have cut nothing.
bool are_disjoint_along(BoxSpan boxes, std::size_t dim, std::size_t num_left) {
  const std::size_t num_dims = boxes[0]->start.size();
  if (boxes.size() == 1) return true;
  if (num_left == 0) return are_disjoint_pairs(boxes);
  std::ranges::sort(boxes, {}, [dim](const LocalBox* box) { return box->start[dim]; });
  std::int64_t end = 0;  // end of the current part along dim
  std::size_t first = 0;
  for (std::size_t i = 0; i <= boxes.size(); ++i) {
    if (i > first && (i == boxes.size() || boxes[i]->start[dim] >= end)) {
      const bool is_whole = i - first == boxes.size();
      const std::size_t next_left = is_whole ? num_left - 1 : num_dims;
      if (!are_disjoint_along(boxes.subspan(first, i - first), (dim + 1) % num_dims, next_left)) return false;
      first = i;
    }
    if (i < boxes.size()) end = std::max(i == first ? 0 : end, boxes[i]->start[dim] + boxes[i]->sizes[dim]);
  }
  return true;
}

}  // namespace

std::vector<LocalBox> held_boxes(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                 const Placements& placements, const std::vector<std::int64_t>& coordinate) {
  const LocalBox box = local_box(global_shape, mesh, placements, coordinate);
  if (!has_flat_shard(placements)) return {box};
  return boxes_of_range(box, flat_range(box.numel(), mesh, placements, coordinate));
}

std::vector<LocalBox> boxes_of_range(const LocalBox& box, const FlatRange& range) {
  std::vector<LocalBox> boxes;
  append_boxes(box, 0, range, boxes);
  return boxes;
}

bool have_common_elements(const LocalBox& a, const LocalBox& b) {
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    const std::int64_t begin = std::max(a.start[d], b.start[d]);
    if (std::min(a.start[d] + a.sizes[d], b.start[d] + b.sizes[d]) <= begin) return false;
  }
  return true;
}

bool are_disjoint(const std::vector<LocalBox>& boxes) {
  if (boxes.size() < 2) return true;
  if (boxes[0].start.empty()) return false;  // the one element of a scalar
  std::vector<const LocalBox*> all;
  for (const LocalBox& box : boxes) all.push_back(&box);
  return are_disjoint_along(all, 0, boxes[0].start.size());
}

std::vector<BoxIntersection> intersections(const std::vector<LocalBox>& source, const std::vector<LocalBox>& target) {
  std::vector<BoxIntersection> result;
  for (std::size_t i = 0; i < source.size(); ++i) {
    for (std::size_t k = 0; k < target.size(); ++k) {
      if (!have_common_elements(source[i], target[k])) continue;
      LocalBox box = source[i];
      for (std::size_t d = 0; d < box.start.size(); ++d) {
        const std::int64_t end =
            std::min(source[i].start[d] + source[i].sizes[d], target[k].start[d] + target[k].sizes[d]);
        box.start[d] = std::max(source[i].start[d], target[k].start[d]);
        box.sizes[d] = end - box.start[d];
      }
      result.push_back({.box = std::move(box), .source = i, .target = k});
    }
  }
  return result;
}

std::optional<std::int64_t> contiguous_begin(const LocalBox& outer, const LocalBox& inner) {
  std::int64_t begin = 0;
  std::int64_t stride = 1;
  bool is_cut = false;  // an inner dim is incomplete, so all outer dims must have size 1
  for (std::size_t d = outer.sizes.size(); d-- > 0;) {
    if (is_cut && inner.sizes[d] != 1) return std::nullopt;
    is_cut = is_cut || inner.sizes[d] != outer.sizes[d];
    begin += (inner.start[d] - outer.start[d]) * stride;
    stride *= outer.sizes[d];
  }
  return begin;
}

FlatRange flat_extent(const LocalBox& outer, const LocalBox& inner) {
  std::int64_t first = 0, last = 0;
  for (std::size_t d = 0; d < outer.start.size(); ++d) {
    first = first * outer.sizes[d] + inner.start[d] - outer.start[d];
    last = last * outer.sizes[d] + inner.start[d] - outer.start[d] + inner.sizes[d] - 1;
  }
  return {.begin = first, .end = last + 1};
}

}  // namespace d9d
