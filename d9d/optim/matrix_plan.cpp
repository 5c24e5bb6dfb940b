#include "d9d/optim/matrix_plan.h"

#include <algorithm>
#include <functional>
#include <string>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/core/dtensor/redistribute_steps.h"

namespace d9d::detail {
namespace {

struct Matrix {
  std::size_t parameter = 0;
  std::int64_t group = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::size_t owner = 0;

  [[nodiscard]] double cost() const {
    return static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(std::min(rows, cols));
  }
};

// What a rank holds of a parameter: the box that shards leave, and the range of its row-major order.
struct Holding {
  Holding(const NamedParameter& parameter, const std::vector<std::int64_t>& coordinate)
      : box(local_box(whole_shape(parameter), parameter.mesh, parameter.placements, coordinate)),
        range(flat_range(box.numel(), parameter.mesh, parameter.placements, coordinate)) {}

  // The first and the number of groups of the box. A matrix counts as one group.
  [[nodiscard]] FlatRange groups() const {
    return box.sizes.size() == 2 ? FlatRange{0, 1} : FlatRange{box.start[0], box.start[0] + box.sizes[0]};
  }
  // The box without the dim of groups.
  [[nodiscard]] LocalBox within_matrix() const {
    const auto skipped = static_cast<std::ptrdiff_t>(box.sizes.size() - 2);
    return {.start = {box.start.begin() + skipped, box.start.end()},
            .sizes = {box.sizes.begin() + skipped, box.sizes.end()}};
  }
  // The range of the row-major order of within_matrix() that the rank holds of a group.
  [[nodiscard]] FlatRange of_group(std::int64_t group) const {
    const std::int64_t numel = within_matrix().numel(), first = (group - groups().begin) * numel;
    return {.begin = std::clamp(range.begin - first, std::int64_t{0}, numel),
            .end = std::clamp(range.end - first, std::int64_t{0}, numel)};
  }
  // Where that range begins in the rank's tensor.
  [[nodiscard]] std::int64_t begin_of_group(std::int64_t group) const {
    return (group - groups().begin) * within_matrix().numel() + of_group(group).begin - range.begin;
  }

  LocalBox box;
  FlatRange range;
};

void choose_owners(std::vector<Matrix>& matrices, std::vector<double>& loads) {
  std::vector<Matrix*> by_cost;
  for (Matrix& matrix : matrices) by_cost.push_back(&matrix);
  std::ranges::stable_sort(by_cost, std::greater(), [](const Matrix* matrix) { return matrix->cost(); });
  for (Matrix* const matrix : by_cost) {
    const auto least = std::ranges::min_element(loads);
    matrix->owner = static_cast<std::size_t>(least - loads.begin());
    *least += matrix->cost();
  }
}

OwnedSlice owned_slice(const Matrix& matrix, const Holding& holding, std::int64_t offset) {
  const LocalBox box = holding.within_matrix();
  const FlatRange range = holding.of_group(matrix.group);
  OwnedSlice slice{.boxes = boxes_of_range(box, range), .numel = range.numel(), .offset = offset};
  if (box.sizes[1] == matrix.cols) slice.begin = box.start[0] * matrix.cols + range.begin;
  return slice;
}

void visit_boxes(const at::Tensor& matrix, const at::Tensor& values, const OwnedSlice& slice, const auto& visit) {
  if (slice.begin) return visit(matrix.view({-1}).narrow(0, *slice.begin, slice.numel), values);
  const LocalBox whole = whole_box(matrix.sizes().vec());
  std::int64_t begin = 0;
  for (const LocalBox& box : slice.boxes) {
    visit(view_of(matrix, whole, box), values.narrow(0, begin, box.numel()).view(box.sizes));
    begin += box.numel();
  }
}

}  // namespace

std::vector<std::int64_t> whole_shape(const NamedParameter& parameter) {
  return parameter.global_shape.empty() ? parameter.tensor.sizes().vec() : parameter.global_shape;
}

std::vector<std::size_t> matrix_axes(const NamedParameter& parameter) {
  const bool has_groups = whole_shape(parameter).size() == 3;
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < parameter.placements.size(); ++axis) {
    const Shard* const shard = std::get_if<Shard>(&parameter.placements[axis]);
    const bool is_cut = std::holds_alternative<FlatShard>(parameter.placements[axis]) ||
                        (shard != nullptr && !(has_groups && shard->dim == 0));
    if (is_cut && parameter.mesh.axes()[axis].size > 1) axes.push_back(axis);
  }
  return axes;
}

DeviceMesh matrix_ranks(const NamedParameter& parameter) {
  std::vector<std::string> names;
  for (const std::size_t axis : matrix_axes(parameter)) names.push_back(parameter.mesh.axes()[axis].name);
  return parameter.mesh.slice(names);
}

std::int64_t num_holders(const NamedParameter& parameter) {
  std::int64_t number = 1;
  for (std::size_t axis = 0; axis < parameter.placements.size(); ++axis) {
    if (!std::holds_alternative<Replicate>(parameter.placements[axis])) number *= parameter.mesh.axes()[axis].size;
  }
  return number;
}

MatrixPlan plan_matrices(const std::vector<NamedParameter>& parameters, std::vector<double>& loads) {
  const DeviceMesh ranks = matrix_ranks(parameters.front());
  const auto coordinates = coordinates_along(parameters.front().mesh, matrix_axes(parameters.front()));
  const std::size_t own = static_cast<std::size_t>(ranks.index());
  loads.resize(coordinates.size());
  std::vector<Matrix> matrices;
  std::vector<std::vector<Holding>> holdings;  // by parameter and rank
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& of_ranks = holdings.emplace_back();
    for (const auto& coordinate : coordinates) of_ranks.emplace_back(parameters[i], coordinate);
    const std::vector<std::int64_t> shape = whole_shape(parameters[i]);
    const auto rows = shape[shape.size() - 2], cols = shape.back();
    const FlatRange groups = of_ranks.front().groups();
    for (std::int64_t group = groups.begin; group < groups.end; ++group) {
      if (rows * cols > 0) matrices.push_back({.parameter = i, .group = group, .rows = rows, .cols = cols});
    }
    D9D_ASSERT(of_ranks[own].range.numel() == parameters[i].tensor.numel(), "the layout of '", parameters[i].name,
               "' does not fit the ", parameters[i].tensor.numel(), " elements that this rank has");
  }
  choose_owners(matrices, loads);

  MatrixPlan plan{.held_splits = std::vector<std::int64_t>(coordinates.size()),
                  .owned_splits = std::vector<std::int64_t>(coordinates.size())};
  std::int64_t held = 0;
  for (std::size_t owner = 0; owner < coordinates.size(); ++owner) {
    for (const Matrix& matrix : matrices) {
      const Holding& holding = holdings[matrix.parameter][own];
      const std::int64_t numel = holding.of_group(matrix.group).numel();
      if (matrix.owner != owner || numel == 0) continue;
      plan.held.push_back({.parameter = matrix.parameter,
                           .begin = holding.begin_of_group(matrix.group),
                           .numel = numel,
                           .offset = held});
      plan.held_splits[owner] += numel;
      held += numel;
    }
  }
  std::vector<const Matrix*> owned;
  for (const Matrix& matrix : matrices) {
    if (matrix.owner != own) continue;
    owned.push_back(&matrix);
    plan.owned.push_back({.rows = matrix.rows, .cols = matrix.cols});
  }
  std::int64_t offset = 0;
  for (std::size_t holder = 0; holder < coordinates.size(); ++holder) {
    for (std::size_t i = 0; i < owned.size(); ++i) {
      OwnedSlice slice = owned_slice(*owned[i], holdings[owned[i]->parameter][holder], offset);
      if (slice.numel == 0) continue;
      plan.owned_splits[holder] += slice.numel;
      offset += slice.numel;
      plan.owned[i].slices.push_back(std::move(slice));
    }
  }
  return plan;
}

void copy_slice_to_matrix(const at::Tensor& matrix, const at::Tensor& values, const OwnedSlice& slice) {
  visit_boxes(matrix, values, slice, [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
}

void copy_matrix_to_slice(const at::Tensor& matrix, const at::Tensor& values, const OwnedSlice& slice) {
  visit_boxes(matrix, values, slice, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
}

}  // namespace d9d::detail
