// A named grid over ranks of the job, with this rank's coordinates in it. It is a value and cheap to copy.
//
// Example
//   const DeviceMesh mesh("dense", {{"dp_shard", 4}, {"tp", 2}}, world);   // ranks 0..7, the last axis fastest
//   mesh.axis_size("tp");                                                  // 2
//   mesh.slice({"tp"}).communicator()->all_reduce(x, ReduceOp::kSum).wait();
//   const DeviceMesh alone;                                                // one rank, no axes
//
// Everything is local, except communicator(), which is collective over its ranks at its first call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/core/communicator/world.h"

namespace d9d {

// `axis` always means a mesh axis, `dim` a tensor dimension.
struct MeshAxis {
  std::string name;
  std::int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

class DeviceMesh {
 public:
  DeviceMesh() = default;  // one rank, no axes
  // All ranks of the world, in row-major order. Throws ConfigError if names repeat, a size is < 1 or sizes do not
  // multiply to the size of the world.
  DeviceMesh(std::string name, std::vector<MeshAxis> axes, std::shared_ptr<World> world);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<MeshAxis>& axes() const { return axes_; }  // outermost first
  [[nodiscard]] const std::vector<std::int64_t>& coordinate() const { return coordinate_; }
  [[nodiscard]] bool has_axis(std::string_view axis) const;
  // Throws ConfigError that names the known axes if `axis` is not one of them; so do the functions below.
  [[nodiscard]] std::size_t axis_index(std::string_view axis) const;
  [[nodiscard]] std::int64_t axis_size(std::string_view axis) const;
  [[nodiscard]] std::int64_t axis_coordinate(std::string_view axis) const;
  [[nodiscard]] std::int64_t num_ranks() const;
  // Ranks of the job, in row-major order of their coordinates.
  [[nodiscard]] std::vector<std::int64_t> ranks() const;
  // This rank's position in ranks().
  [[nodiscard]] std::int64_t index() const;

  // The ranks whose coordinates differ from this rank's only in these axes. Axes are given in the order of the mesh.
  [[nodiscard]] DeviceMesh slice(const std::vector<std::string>& axes) const;

  // The communicator of all ranks of the mesh. Throws StateError for a mesh without a world.
  [[nodiscard]] std::shared_ptr<Communicator> communicator(Traffic traffic = Traffic::kCompute) const;
  // The communicator for World::lane(). Used in forwards and backwards, of which a pipeline may run two at the same
  // time.
  [[nodiscard]] std::shared_ptr<Communicator> lane_communicator() const;
  // The communicator of the ranks along one axis.
  [[nodiscard]] std::shared_ptr<Communicator> communicator(const std::string& axis,
                                                           Traffic traffic = Traffic::kCompute) const {
    return slice({axis}).communicator(traffic);
  }

  [[nodiscard]] const std::shared_ptr<World>& world() const { return world_; }  // null for a mesh without one

  // Local. Calls World::throw_if_failed(), for values that were communicated over ranks of the mesh.
  void throw_if_failed() const {
    if (world_ != nullptr) world_->throw_if_failed();
  }

  // True for the same axes over the same ranks, with this rank at the same coordinates.
  bool operator==(const DeviceMesh& other) const;

 private:
  [[nodiscard]] std::shared_ptr<Communicator> connect(Traffic traffic, std::int64_t lane) const;

  std::string name_;
  std::vector<MeshAxis> axes_;
  std::vector<std::int64_t> strides_;  // difference in job ranks between neighbours along an axis
  std::vector<std::int64_t> coordinate_;
  std::int64_t first_rank_ = 0;  // the rank at coordinate zero
  std::shared_ptr<World> world_;
};

}  // namespace d9d
