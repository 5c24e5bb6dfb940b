// Statistics of a step of all stages of a pipeline, for the rank that logs.
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

  // Collective over the stages. `own`: of this rank's stages; the same names and sizes in each call, else StateError
  // that names one. The result, in the order of ranks, is fp64 and the same on all of them. Only the first call waits
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
