#include "d9d/core/dtensor/redistribute_steps.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {
namespace {

using Boxes = std::vector<LocalBox>;
using Axes = std::vector<std::size_t>;

// The ranks whose coordinates differ from this rank's only in the given axes.
struct Group {
  Group(const DeviceMesh& whole, const Axes& axes) {
    std::vector<std::string> names;
    for (const std::size_t axis : axes) names.push_back(whole.axes()[axis].name);
    const DeviceMesh mesh = whole.slice(names);
    communicator = mesh.communicator();
    rank = mesh.index();
    coordinates = coordinates_along(whole, axes);
  }
  [[nodiscard]] std::int64_t size() const { return std::ssize(coordinates); }

  std::shared_ptr<Communicator> communicator;
  std::int64_t rank = 0;
  std::vector<std::vector<std::int64_t>> coordinates;  // of each rank of the group, in the whole mesh
};

std::int64_t numel_of(const std::vector<BoxIntersection>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                         [](std::int64_t sum, const BoxIntersection& part) { return sum + part.box.numel(); });
}

// A local tensor and the boxes that it holds.
struct Holding {
  // Returns the elements of `box`, which is part of boxes[index], as a view of the shape of `box`.
  [[nodiscard]] at::Tensor view(const LocalBox& box, std::size_t index) const {
    const LocalBox& outer = boxes[index];
    at::Tensor part = local;
    if (is_flat) {
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < index; ++i) begin += boxes[i].numel();
      part = local.narrow(0, begin, outer.numel()).view(outer.sizes);
    }
    return view_of(part, outer, box);
  }

  at::Tensor local;
  Boxes boxes;
  bool is_flat = false;
};

Holding empty_holding(const at::Tensor& like, const std::vector<std::int64_t>& shape, Boxes boxes, bool is_flat) {
  return {.local = at::empty(shape, like.options()), .boxes = std::move(boxes), .is_flat = is_flat};
}

void copy_parts(const Holding& target, const Holding& source, const std::vector<BoxIntersection>& parts) {
  for (const BoxIntersection& part : parts) {
    target.view(part.box, part.target).copy_(source.view(part.box, part.source));
  }
}

// Copies the parts of the source to the front of the buffer, one after the other.
void pack(at::Tensor buffer, const Holding& source, const std::vector<BoxIntersection>& parts) {
  std::int64_t begin = 0;
  for (const BoxIntersection& part : parts) {
    buffer.narrow(0, begin, part.box.numel()).view(part.box.sizes).copy_(source.view(part.box, part.source));
    begin += part.box.numel();
  }
}

void unpack(const Holding& target, const at::Tensor& buffer, const std::vector<BoxIntersection>& parts) {
  std::int64_t begin = 0;
  for (const BoxIntersection& part : parts) {
    target.view(part.box, part.target).copy_(buffer.narrow(0, begin, part.box.numel()).view(part.box.sizes));
    begin += part.box.numel();
  }
}

// The elements that one rank and each rank of the group both hold, by rank.
struct Parts {
  std::vector<std::vector<BoxIntersection>> of_rank;
  std::int64_t largest = 0;  // most elements of a rank

  void append(std::vector<BoxIntersection> parts) {
    largest = std::max(largest, numel_of(parts));
    of_rank.push_back(std::move(parts));
  }
  // Whether the parts have equal sizes and, joined in rank order, are the row-major order of `box`.
  [[nodiscard]] bool are_equal_slices(const LocalBox& box) const {
    std::int64_t begin = 0;
    for (const std::vector<BoxIntersection>& parts : of_rank) {
      if (numel_of(parts) != largest) return false;
      for (const BoxIntersection& part : parts) {
        if (contiguous_begin(box, part.box) != begin) return false;
        begin += part.box.numel();
      }
    }
    return true;
  }
};

void all_gather(const Group& group, const Holding& source, const Holding& target, const std::vector<Boxes>& holders) {
  Parts parts;
  for (const Boxes& boxes : holders) parts.append(intersections(boxes, target.boxes));
  if (parts.largest == 0) return;
  const std::vector<BoxIntersection>& mine = parts.of_rank[static_cast<std::size_t>(group.rank)];
  const bool is_direct = target.boxes.size() == 1 && parts.are_equal_slices(target.boxes.front());
  const at::Tensor gathered =
      is_direct ? target.local.view({-1}) : at::empty({group.size() * parts.largest}, target.local.options());
  const at::Tensor sent = gathered.narrow(0, group.rank * parts.largest, parts.largest);
  pack(sent, source, mine);
  group.communicator->all_gather(gathered, sent).wait();
  if (is_direct) return;
  for (std::int64_t i = 0; i < group.size(); ++i) {
    unpack(target, gathered.narrow(0, i * parts.largest, parts.largest), parts.of_rank[static_cast<std::size_t>(i)]);
  }
}

void all_to_all(const Group& group, const Holding& source, const Holding& target, const std::vector<Boxes>& holders,
                const std::vector<Boxes>& takers) {
  std::vector<std::vector<BoxIntersection>> sent;
  std::vector<std::vector<BoxIntersection>> received;
  std::vector<std::int64_t> sent_sizes;
  std::vector<std::int64_t> received_sizes;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    const bool is_me = static_cast<std::int64_t>(i) == group.rank;  // this rank's own part is copied directly
    sent.push_back(is_me ? std::vector<BoxIntersection>() : intersections(source.boxes, takers[i]));
    received.push_back(is_me ? std::vector<BoxIntersection>() : intersections(holders[i], target.boxes));
    sent_sizes.push_back(numel_of(sent.back()));
    received_sizes.push_back(numel_of(received.back()));
  }
  const auto buffer_of = [&](const std::vector<std::int64_t>& sizes) {
    return at::empty({std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})}, target.local.options());
  };
  const at::Tensor input = buffer_of(sent_sizes);
  const at::Tensor output = buffer_of(received_sizes);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    pack(input.narrow(0, begin, sent_sizes[i]), source, sent[i]);
    begin += sent_sizes[i];
  }
  Work work = group.communicator->all_to_all(output, input, received_sizes, sent_sizes);
  copy_parts(target, source, intersections(source.boxes, target.boxes));
  work.wait();
  begin = 0;
  for (std::size_t i = 0; i < received.size(); ++i) {
    unpack(target, output.narrow(0, begin, received_sizes[i]), received[i]);
    begin += received_sizes[i];
  }
}

bool is_cut(const Placement& placement) {
  return std::holds_alternative<Shard>(placement) || std::holds_alternative<FlatShard>(placement);
}

bool cut_one_dim(const Placement& one, const Placement& other) {
  const auto* const a = std::get_if<Shard>(&one);
  const auto* const b = std::get_if<Shard>(&other);
  return a != nullptr && b != nullptr && a->dim == b->dim;
}

}  // namespace

std::vector<std::vector<std::int64_t>> coordinates_along(const DeviceMesh& mesh, const std::vector<std::size_t>& axes) {
  std::vector<std::vector<std::int64_t>> coordinates = {mesh.coordinate()};
  for (const std::size_t axis : axes) {
    std::vector<std::vector<std::int64_t>> further;
    for (const std::vector<std::int64_t>& coordinate : coordinates) {
      for (std::int64_t i = 0; i < mesh.axes()[axis].size; ++i) {
        further.push_back(coordinate);
        further.back()[axis] = i;
      }
    }
    coordinates = std::move(further);
  }
  return coordinates;
}

std::vector<std::int64_t> local_shape(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                                      const Placements& placements) {
  const LocalBox box = local_box(global_shape, mesh, placements);
  if (!has_flat_shard(placements)) return box.sizes;
  return {flat_range(box.numel(), mesh, placements).numel()};
}

std::vector<std::size_t> travel_axes(const DeviceMesh& mesh, const Placements& from, const Placements& to) {
  const auto cut_of = [&](const Placements& placements, std::size_t axis) {
    return mesh.axes()[axis].size > 1 && is_cut(placements[axis]) ? placements[axis] : Placement(Replicate{});
  };
  std::vector<std::size_t> result;
  for (std::size_t axis = 0; axis < from.size(); ++axis) {
    const Placement here = cut_of(from, axis);
    if (!is_cut(here)) continue;
    bool travels = false;
    for (std::size_t other = 0; other < from.size(); ++other) {
      const Placement before = cut_of(from, other);
      const Placement after = cut_of(to, other);
      if (before == after) continue;
      // A shard splits the part of its dim that the outer axes leave; a flat shard splits the box that all shards
      // leave.
      travels = travels || other == axis || std::holds_alternative<FlatShard>(here) ||
                (other < axis && (cut_one_dim(before, here) || cut_one_dim(after, here)));
    }
    if (travels) result.push_back(axis);
  }
  return result;
}

at::Tensor move_elements(const at::Tensor& local, const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                         const Placements& from, const Placements& to) {
  const at::NoGradGuard no_grad;
  const auto held_by = [&](const Placements& placements, const std::vector<std::int64_t>& coordinate) {
    return held_boxes(global_shape, mesh, placements, coordinate);
  };
  const Holding source = {.local = local, .boxes = held_by(from, mesh.coordinate()), .is_flat = has_flat_shard(from)};
  Boxes wanted = held_by(to, mesh.coordinate());
  const Axes axes = travel_axes(mesh, from, to);
  if (axes.empty() && wanted == source.boxes && has_flat_shard(to) == source.is_flat) return local;
  const Holding target =
      empty_holding(local, local_shape(global_shape, mesh, to), std::move(wanted), has_flat_shard(to));
  if (axes.empty()) {
    copy_parts(target, source, intersections(source.boxes, target.boxes));
    return target.local;
  }
  const Group group(mesh, axes);
  std::vector<Boxes> holders;
  for (const auto& coordinate : group.coordinates) holders.push_back(held_by(from, coordinate));
  if (std::ranges::none_of(axes, [&](std::size_t axis) { return is_cut(to[axis]); })) {
    all_gather(group, source, target, holders);
  } else {
    std::vector<Boxes> takers;
    for (const auto& coordinate : group.coordinates) takers.push_back(held_by(to, coordinate));
    all_to_all(group, source, target, holders, takers);
  }
  return target.local;
}

at::Tensor reduce_elements(const at::Tensor& local, const std::vector<std::int64_t>& global_shape,
                           const DeviceMesh& mesh, const Placements& from, const Placements& to,
                           const std::vector<std::size_t>& axes, ReduceOp op) {
  const at::NoGradGuard no_grad;
  const Group group(mesh, axes);
  if (std::ranges::none_of(axes, [&](std::size_t axis) { return is_cut(to[axis]); })) {
    const at::Tensor reduced = local.clone(at::MemoryFormat::Contiguous);
    group.communicator->all_reduce(reduced, op).wait();
    return reduced;
  }
  const Holding source = {.local = local,
                          .boxes = held_boxes(global_shape, mesh, from, mesh.coordinate()),
                          .is_flat = has_flat_shard(from)};
  const Holding target = empty_holding(local, local_shape(global_shape, mesh, to),
                                       held_boxes(global_shape, mesh, to, mesh.coordinate()), has_flat_shard(to));
  Parts parts;
  for (const auto& coordinate : group.coordinates) {
    parts.append(intersections(source.boxes, held_boxes(global_shape, mesh, to, coordinate)));
  }
  if (parts.largest == 0) return target.local;
  const at::Tensor input = at::empty({group.size() * parts.largest}, local.options());
  for (std::int64_t i = 0; i < group.size(); ++i) {
    const std::vector<BoxIntersection>& theirs = parts.of_rank[static_cast<std::size_t>(i)];
    const at::Tensor slice = input.narrow(0, i * parts.largest, parts.largest);
    const std::int64_t used = numel_of(theirs);
    pack(slice, source, theirs);
    slice.narrow(0, used, parts.largest - used).zero_();  // nobody reads the sum of the padding, but it must not trap
  }
  const at::Tensor output = at::empty({parts.largest}, local.options());
  group.communicator->reduce_scatter(output, input, op).wait();
  unpack(target, output, parts.of_rank[static_cast<std::size_t>(group.rank)]);
  return target.local;
}

}  // namespace d9d
