// A rank's view of its job: its rank, its device, the meshes of all ranks and the communication with them. launch()
// builds it and passes it by reference; a process may have several, such as one for each rank that is a thread.
//
// Example
//   const DeviceMesh& dense = context.mesh(MeshDomain::kDense);
//   context.main_process_first([&] { prepare_dataset(folder); });
//   if (context.is_main_process()) context.log().info("ready");
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "d9d/base/enum_names.h"
#include "d9d/base/log.h"
#include "d9d/core/communicator/world.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/core/mesh/device_mesh_parameters.h"

namespace d9d {

// The views of the job's ranks. In each view the last axis is fastest; axes of size 1 are present too.
//
//   regular  pp, dp_replicate, dp_shard, cp_shard, cp_replicate, tp
//   dense    pp, dp_replicate, dp_cp_shard, cp_replicate, tp            all parameters except those of experts
//   expert   pp, ep_replicate, ep_shard                                 experts' parameters; all ranks, including tp
//   batch    pp, dp, cp, tp                                             how samples and positions are divided
//   flat     world
enum class MeshDomain { kRegular, kDense, kExpert, kBatch, kFlat };
constexpr auto enum_names(MeshDomain) {
  return std::to_array<EnumName<MeshDomain>>({{MeshDomain::kRegular, "regular"},
                                              {MeshDomain::kDense, "dense"},
                                              {MeshDomain::kExpert, "expert"},
                                              {MeshDomain::kBatch, "batch"},
                                              {MeshDomain::kFlat, "flat"}});
}

// Axes of the dense mesh whose ranks see different data: gradients of parameters are summed over them.
[[nodiscard]] std::vector<std::string> dense_data_axes();

struct DistContextConfig {
  DeviceMeshParameters mesh;
  std::shared_ptr<World> world;
  std::int64_t local_rank = 0;  // among the ranks of this machine
  std::int64_t node_rank = 0;   // the index of this machine
  std::int64_t num_nodes = 1;
  std::string master_address = "127.0.0.1";
  LogLevel log_level = LogLevel::kInfo;  // lines of lower levels are dropped
  LogSink log_sink = write_line_to_stderr;
};

class DistContext {
 public:
  // Throws ConfigError, with the arithmetic, unless the product of the mesh's degrees is the size of the world.
  explicit DistContext(DistContextConfig config);
  DistContext(const DistContext&) = delete;
  DistContext& operator=(const DistContext&) = delete;

  [[nodiscard]] std::int64_t rank() const { return config_.world->rank(); }
  [[nodiscard]] std::int64_t world_size() const { return config_.world->size(); }
  [[nodiscard]] std::int64_t local_rank() const { return config_.local_rank; }
  [[nodiscard]] std::int64_t node_rank() const { return config_.node_rank; }
  [[nodiscard]] std::int64_t num_nodes() const { return config_.num_nodes; }
  [[nodiscard]] const std::string& master_address() const { return config_.master_address; }
  [[nodiscard]] bool is_main_process() const { return rank() == 0; }
  [[nodiscard]] bool is_local_main_process() const { return local_rank() == 0; }
  [[nodiscard]] const std::shared_ptr<World>& world() const { return config_.world; }
  [[nodiscard]] c10::Device device() const { return config_.world->device(); }
  [[nodiscard]] const DeviceMeshParameters& mesh_parameters() const { return config_.mesh; }
  // Lines are prefixed with the coordinates on the axes of the regular mesh that have several ranks, such as
  // "dps:1-tp:0", or with "local" in a job of one rank.
  [[nodiscard]] const Logger& log() const { return log_; }

  [[nodiscard]] const DeviceMesh& mesh(MeshDomain domain) const { return meshes_[static_cast<std::size_t>(domain)]; }
  // Size and coordinate of the axis `dp` of the batch mesh, over which the samples of a step are divided.
  [[nodiscard]] std::int64_t data_parallel_size() const;
  [[nodiscard]] std::int64_t data_parallel_rank() const;

  // Collective. Blocks the host until all ranks have called it. Does not wait for devices.
  void wait_world() const;
  // Collective. Runs body() on the main process, then on the other ranks. If it throws on the main process, the others
  // throw PeerFailedError immediately.
  void main_process_first(const std::function<void()>& body) const;
  // Collective. Runs body() on the first rank of each machine, then on the other ranks; throws as main_process_first().
  void local_main_process_first(const std::function<void()>& body) const;
  // Collective. Sets how long each later communication may wait for other ranks.
  void set_timeout(std::chrono::milliseconds timeout) const;
  // Local, but to be called on all ranks. Notes an error that must not discard the results of the program: the program
  // continues, and when it has ended on all ranks, launch() reports the first such error.
  void fail_at_end(std::string error) const;
  [[nodiscard]] const std::optional<std::string>& failure_at_end() const { return failure_at_end_; }
  // Local, but to be called on all ranks. Notes that this signal has ended the work of the program early, although the
  // program goes on to its end: launch() then returns 128 + signal.
  void stopped_by(int signal) const { stop_signal_ = signal; }
  [[nodiscard]] int stop_signal() const { return stop_signal_; }  // 0: none
  // Collective. Leaves the job. The caller must not communicate afterwards.
  void close() const;

 private:
  void first(bool is_first, const std::function<void()>& body) const;

  DistContextConfig config_;
  Logger log_;
  std::array<DeviceMesh, 5> meshes_;
  mutable std::optional<std::string> failure_at_end_;
  mutable int stop_signal_ = 0;
};

}  // namespace d9d
