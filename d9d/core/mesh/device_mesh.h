// A named grid over ranks of the job and this rank's place in it. A value: cheap to copy.
//
// Example
//   const DeviceMesh mesh("dense", {{"dp_shard", 4}, {"tp", 2}}, world);   // ranks 0..7, the last axis fastest
//   mesh.axis_size("tp");                                                  // 2
//   mesh.slice({"tp"}).communicator()->all_reduce(x, ReduceOp::kSum).wait();
//   const DeviceMesh alone;                                                // one rank, no axes
//
// Everything is local but communicator(), which is collective over its ranks the first time.
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
  // Throws ConfigError naming the known axes if `axis` is not one of them; also below.
  [[nodiscard]] std::size_t axis_index(std::string_view axis) const;
  [[nodiscard]] std::int64_t axis_size(std::string_view axis) const;
  [[nodiscard]] std::int64_t axis_coordinate(std::string_view axis) const;
  [[nodiscard]] std::int64_t num_ranks() const;
  // Ranks of the job, in row-major order of their coordinates.
  [[nodiscard]] std::vector<std::int64_t> ranks() const;
  // This rank's position in ranks().
  [[nodiscard]] std::int64_t index() const;

  // The ranks that differ from this one in these axes only. Axes are given in the order of the mesh.
  [[nodiscard]] DeviceMesh slice(const std::vector<std::string>& axes) const;

  // Of all ranks of the mesh as one group. Throws StateError for a mesh without a world.
  [[nodiscard]] std::shared_ptr<Communicator> communicator(Traffic traffic = Traffic::kCompute) const;
  // Of the ranks along one axis.
  [[nodiscard]] std::shared_ptr<Communicator> communicator(const std::string& axis,
                                                           Traffic traffic = Traffic::kCompute) const {
    return slice({axis}).communicator(traffic);
  }

  // Local. As World's, for what crossed ranks of the mesh.
  void throw_if_failed() const {
    if (world_ != nullptr) world_->throw_if_failed();
  }

  // The same axes over the same ranks, with this rank at the same place.
  bool operator==(const DeviceMesh& other) const;

 private:
  std::string name_;
  std::vector<MeshAxis> axes_;
  std::vector<std::int64_t> strides_;  // in ranks of the job, between neighbours along an axis
  std::vector<std::int64_t> coordinate_;
  std::int64_t first_rank_ = 0;  // at coordinate zero
  std::shared_ptr<World> world_;
};

}  // namespace d9d
