#include "d9d/core/dtensor/layout.h"

#include <algorithm>

#include <c10/util/accumulate.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"

namespace d9d {

std::int64_t LocalBox::numel() const { return c10::multiply_integers(sizes); }

FlatRange chunk_range(std::int64_t size, std::int64_t index, std::int64_t num_parts, std::int64_t unit) {
  const std::int64_t chunk = divide_up(divide_up(size, unit), num_parts) * unit;
  return {.begin = std::min(index * chunk, size), .end = std::min((index + 1) * chunk, size)};
}

LocalBox local_box(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh, const Placements& placements,
                   const std::vector<std::int64_t>& coordinate) {
  D9D_CHECK(placements.size() == mesh.axes().size(), ConfigError, "[core::layout] expected one placement for each of ",
            mesh.axes().size(), " axes of mesh '", mesh.name(), "', got ", placements.size(), ".");
  LocalBox box{.start = std::vector<std::int64_t>(global_shape.size()), .sizes = global_shape};
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const Shard* const shard = std::get_if<Shard>(&placements[axis]);
    if (shard == nullptr) continue;
    D9D_CHECK(shard->dim >= 0 && shard->dim < std::ssize(global_shape), ConfigError,
              "[core::layout] expected a dim in [0, ", global_shape.size(), ") to shard over axis '",
              mesh.axes()[axis].name, "', got ", shard->dim, ".");
    D9D_CHECK(shard->unit > 0, ConfigError, "[core::layout] expected a positive unit of shards over axis '",
              mesh.axes()[axis].name, "', got ", shard->unit, ".");
    const auto dim = static_cast<std::size_t>(shard->dim);
    const FlatRange range = chunk_range(box.sizes[dim], coordinate[axis], mesh.axes()[axis].size, shard->unit);
    box.start[dim] += range.begin;
    box.sizes[dim] = range.numel();
  }
  return box;
}

LocalBox local_box(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                   const Placements& placements) {
  return local_box(global_shape, mesh, placements, mesh.coordinate());
}

bool has_flat_shard(const Placements& placements) {
  return std::ranges::any_of(placements, [](const Placement& one) { return std::holds_alternative<FlatShard>(one); });
}

FlatRange flat_range(std::int64_t box_numel, const DeviceMesh& mesh, const Placements& placements,
                     const std::vector<std::int64_t>& coordinate) {
  const FlatShard* flat = nullptr;
  std::int64_t num_parts = 1;
  std::int64_t index = 0;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const FlatShard* const here = std::get_if<FlatShard>(&placements[axis]);
    if (here == nullptr) continue;
    flat = here;
    num_parts *= mesh.axes()[axis].size;
    index = index * mesh.axes()[axis].size + coordinate[axis];
  }
  if (flat == nullptr) return {.begin = 0, .end = box_numel};
  const std::int64_t part = flat->padded_numel / num_parts;
  const auto within = [&](std::int64_t position) {
    return std::clamp<std::int64_t>(position - flat->offset_in_unit, 0, box_numel);
  };
  return {.begin = within(index * part), .end = within((index + 1) * part)};
}

FlatRange flat_range(std::int64_t box_numel, const DeviceMesh& mesh, const Placements& placements) {
  return flat_range(box_numel, mesh, placements, mesh.coordinate());
}

ElementRows element_rows(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                         const Placements& placements) {
  const LocalBox box = local_box(global_shape, mesh, placements);
  const FlatRange range = flat_range(box.numel(), mesh, placements);
  ElementRows rows{.begin = range.begin, .row_size = box.numel(), .row_pitch = box.numel()};
  if (range.numel() == 0) return {};
  std::int64_t stride = 1;        // stride of the dim in the whole tensor
  std::int64_t local_stride = 1;  // stride of the dim in the box
  int num_cut_inside = 0;
  for (std::size_t dim = global_shape.size(); dim-- > 0;) {
    rows.start += box.start[dim] * stride;
    stride *= global_shape[dim];
    local_stride *= box.sizes[dim];
    if (box.sizes[dim] == global_shape[dim] || dim == 0) continue;
    rows.row_size = local_stride;
    rows.row_pitch = stride;
    ++num_cut_inside;
  }
  D9D_CHECK(num_cut_inside <= 1, ConfigError, "[core::layout] expected a cut of one dim behind the first, got ",
            num_cut_inside, ". Shard the tensor along fewer dims.");
  if (rows.row_size == box.numel()) {  // a single row
    return {.start = rows.start + rows.begin};
  }
  return rows;
}

}  // namespace d9d
