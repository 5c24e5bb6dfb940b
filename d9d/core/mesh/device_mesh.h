// A named grid over ranks and this rank's place in it. A value: cheap to copy, no communication.
//
// Example
//   const DeviceMesh mesh({{"dp_shard", 4}, {"tp", 2}}, /*coordinate=*/{3, 0});
//   mesh.axis_size("tp");    // 2
//   const DeviceMesh alone;  // one rank, no axes
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
  // Throws ConfigError if names repeat, a size is < 1 or a coordinate lies outside its axis.
  DeviceMesh(std::vector<MeshAxis> axes, std::vector<std::int64_t> coordinate);

  [[nodiscard]] const std::vector<MeshAxis>& axes() const { return axes_; }  // outermost first
  [[nodiscard]] const std::vector<std::int64_t>& coordinate() const { return coordinate_; }
  // Throws ConfigError naming the known axes if `name` is not one of them.
  [[nodiscard]] std::int64_t axis_size(std::string_view name) const;
  [[nodiscard]] std::int64_t axis_coordinate(std::string_view name) const;
  [[nodiscard]] std::int64_t num_ranks() const;
  bool operator==(const DeviceMesh&) const = default;

 private:
  [[nodiscard]] std::size_t axis_index(std::string_view name) const;

  std::vector<MeshAxis> axes_;
  std::vector<std::int64_t> coordinate_;
};

}  // namespace d9d
