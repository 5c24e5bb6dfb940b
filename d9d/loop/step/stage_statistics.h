// Gathers the step statistics of all stages of a pipeline, for the rank that logs.
//
// Example
//   StageStatistics statistics(context.mesh(MeshDomain::kRegular).slice({"pp"}));
//   for (const auto& [name, value] : statistics.gather(module->step_statistics())) ...
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

class StageStatistics {
 public:
  explicit StageStatistics(DeviceMesh stages) : stages_(std::move(stages)) {}

  // Collective over the stages. own: statistics of this rank's stages by name. Throws a StateError that names the
  // statistic unless every call has the same names and sizes. With several ranks, the result is fp64 and the same on
  // all ranks; if several ranks have a statistic of one name, the first rank's is returned. Only the first call waits
  // for the device.
  [[nodiscard]] std::map<std::string, at::Tensor> gather(const std::map<std::string, at::Tensor>& own);

 private:
  struct Series {
    std::string name;
    std::int64_t size;
  };

  void check_same(const std::map<std::string, at::Tensor>& own) const;

  DeviceMesh stages_;
  std::vector<std::vector<Series>> series_;  // of each rank; empty before the first call
};

}  // namespace d9d
