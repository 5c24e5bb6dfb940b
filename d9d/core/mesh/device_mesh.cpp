#include "d9d/core/mesh/device_mesh.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, std::vector<std::int64_t> coordinate)
    : axes_(std::move(axes)), coordinate_(std::move(coordinate)) {
  D9D_CHECK(axes_.size() == coordinate_.size(), ConfigError, "[core::mesh] expected one coordinate an axis, got ",
            coordinate_.size(), " for ", axes_.size(), " axes.");
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const MeshAxis& axis = axes_[i];
    D9D_CHECK(axis.size >= 1, ConfigError, "[core::mesh] expected axis '", axis.name, "' of at least one rank, got ",
              axis.size, ".");
    D9D_CHECK(coordinate_[i] >= 0 && coordinate_[i] < axis.size, ConfigError,
              "[core::mesh] expected a coordinate in [0, ", axis.size, ") on axis '", axis.name, "', got ",
              coordinate_[i], ".");
    D9D_CHECK(
        std::count_if(axes_.begin(), axes_.end(), [&](const MeshAxis& other) { return other.name == axis.name; }) == 1,
        ConfigError, "[core::mesh] expected distinct axis names, got '", axis.name, "' twice.");
  }
}

std::size_t DeviceMesh::axis_index(std::string_view name) const {
  std::string known;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == name) return i;
    known += (known.empty() ? "" : ", ") + axes_[i].name;
  }
  throw ConfigError(cat("[core::mesh] expected one of the axes {", known, "}, got '", name, "'."));
}

std::int64_t DeviceMesh::axis_size(std::string_view name) const { return axes_[axis_index(name)].size; }
std::int64_t DeviceMesh::axis_coordinate(std::string_view name) const { return coordinate_[axis_index(name)]; }

std::int64_t DeviceMesh::num_ranks() const {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : axes_) ranks *= axis.size;
  return ranks;
}

}  // namespace d9d
