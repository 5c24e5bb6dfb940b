// What a rank knows about its job: who it is, which device it has, how the ranks are arranged. Built by launch(),
// passed by reference; there may be several in a process.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

#include "d9d/base/log.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/core/mesh/device_mesh_parameters.h"

namespace d9d {

struct DistContextConfig {
  DeviceMeshParameters mesh;
  std::int64_t rank = 0;
  c10::Device device = c10::kCPU;
  Logger log = Logger();
};

class DistContext {
 public:
  // Throws ConfigError, naming the degree, for more than one rank: they are not built in this version.
  explicit DistContext(DistContextConfig config);

  [[nodiscard]] std::int64_t rank() const { return config_.rank; }
  [[nodiscard]] std::int64_t world_size() const { return config_.mesh.world_size(); }
  [[nodiscard]] bool is_main_process() const { return config_.rank == 0; }
  [[nodiscard]] c10::Device device() const { return config_.device; }
  [[nodiscard]] const DeviceMeshParameters& mesh_parameters() const { return config_.mesh; }
  [[nodiscard]] const Logger& log() const { return config_.log; }
  // Data-parallel size and coordinate: how the samples of a step are divided.
  [[nodiscard]] std::int64_t data_parallel_size() const;
  [[nodiscard]] std::int64_t data_parallel_rank() const { return 0; }

 private:
  DistContextConfig config_;
};

}  // namespace d9d
