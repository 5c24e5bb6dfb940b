#include "d9d/core/mesh/device_mesh.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string_view suffix_of(Traffic traffic) {
  switch (traffic) {
    case Traffic::kCompute:
      return "";
    case Traffic::kParameters:
      return " (parameters)";
    case Traffic::kGradients:
      return " (gradients)";
  }
  return "";
}

}  // namespace

DeviceMesh::DeviceMesh(std::string name, std::vector<MeshAxis> axes, std::shared_ptr<World> world)
    : name_(std::move(name)),
      axes_(std::move(axes)),
      strides_(axes_.size()),
      coordinate_(axes_.size()),
      world_(std::move(world)) {
  std::int64_t stride = 1;
  std::string product;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    const MeshAxis& axis = axes_[i];
    D9D_CHECK(axis.size >= 1, ConfigError, "[core::mesh] expected axis '", axis.name, "' of at least one rank, got ",
              axis.size, ".");
    D9D_CHECK(std::ranges::count(axes_, axis.name, &MeshAxis::name) == 1, ConfigError,
              "[core::mesh] expected distinct axis names, got '", axis.name, "' twice.");
    strides_[i] = stride;
    coordinate_[i] = world_->rank() / stride % axis.size;
    stride *= axis.size;
    product = cat(axis.name, "=", axis.size, product.empty() ? "" : " x ", product);
  }
  D9D_CHECK(stride == world_->size(), ConfigError, "[core::mesh] expected the axes of mesh '", name_,
            "' to multiply to the ", world_->size(), " ranks of the job, got ", product, " = ", stride, ".");
}

bool DeviceMesh::has_axis(std::string_view axis) const {
  return std::ranges::find(axes_, axis, &MeshAxis::name) != axes_.end();
}

std::size_t DeviceMesh::axis_index(std::string_view axis) const {
  std::string known;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
    known += (known.empty() ? "" : ", ") + axes_[i].name;
  }
  throw ConfigError(
      cat("[core::mesh] expected one of the axes {", known, "} of mesh '", name_, "', got '", axis, "'."));
}

std::int64_t DeviceMesh::axis_size(std::string_view axis) const { return axes_[axis_index(axis)].size; }
std::int64_t DeviceMesh::axis_coordinate(std::string_view axis) const { return coordinate_[axis_index(axis)]; }

std::int64_t DeviceMesh::num_ranks() const {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : axes_) ranks *= axis.size;
  return ranks;
}

std::vector<std::int64_t> DeviceMesh::ranks() const {
  std::vector<std::int64_t> ranks = {first_rank_};
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t rank : ranks) {
      for (std::int64_t k = 0; k < axes_[i].size; ++k) longer.push_back(rank + k * strides_[i]);
    }
    ranks = std::move(longer);
  }
  return ranks;
}

std::int64_t DeviceMesh::index() const {
  std::int64_t index = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) index = index * axes_[i].size + coordinate_[i];
  return index;
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& axes) const {
  DeviceMesh part;
  part.world_ = world_;
  part.first_rank_ = first_rank_;
  for (std::size_t i = 0; i < axes_.size(); ++i) part.first_rank_ += coordinate_[i] * strides_[i];
  std::size_t next = 0;  // the next name must be an axis from this index on
  for (const std::string& axis : axes) {
    const std::size_t i = axis_index(axis);
    D9D_CHECK(i >= next, ConfigError, "[core::mesh] expected axes in the order of mesh '", name_, "', got '", axis,
              "' too late.");
    part.axes_.push_back(axes_[i]);
    part.strides_.push_back(strides_[i]);
    part.coordinate_.push_back(coordinate_[i]);
    part.first_rank_ -= coordinate_[i] * strides_[i];
    part.name_ += cat(part.name_.empty() ? cat(name_, ":") : "+", axis);
    next = i + 1;
  }
  return part;
}

std::shared_ptr<Communicator> DeviceMesh::communicator(Traffic traffic) const { return connect(traffic, /*lane=*/0); }

std::shared_ptr<Communicator> DeviceMesh::lane_communicator() const {
  return connect(Traffic::kCompute, world_ == nullptr ? 0 : world_->lane());
}

std::shared_ptr<Communicator> DeviceMesh::connect(Traffic traffic, std::int64_t lane) const {
  D9D_CHECK(world_ != nullptr, StateError, "[core::mesh] expected a mesh of a job, got mesh '", name_,
            "' without ranks to talk to. Take the meshes of DistContext.");
  return world_->communicator({.name = cat(name_, suffix_of(traffic), lane == 0 ? "" : cat(" (lane ", lane, ")")),
                               .ranks = ranks(),
                               .index = index(),
                               .traffic = traffic,
                               .lane = lane});
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  return axes_ == other.axes_ && strides_ == other.strides_ && coordinate_ == other.coordinate_ &&
         first_rank_ == other.first_rank_;
}

}  // namespace d9d
