// Starts a job: sets what belongs to the whole process once, finds the device, runs the program on each rank and turns
// errors into one line and an exit code.
//
// Example
//   int main(int argc, char** argv) {
//     return d9d::launch<PretrainConfig>(argc, argv, [](const PretrainConfig& config, d9d::DistContext& context) {
//       ...
//     });
//   }
#pragma once

#include <cstdint>
#include <functional>

#include "d9d/base/config/load_config.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/log.h"
#include "d9d/base/record.h"
#include "d9d/core/dist_context/dist_context.h"

namespace d9d {

enum class DeviceChoice { kAuto, kCpu, kCuda };
constexpr auto enum_names(DeviceChoice) {
  return std::to_array<EnumName<DeviceChoice>>(
      {{DeviceChoice::kAuto, "auto"}, {DeviceChoice::kCpu, "cpu"}, {DeviceChoice::kCuda, "cuda"}});
}

// Where the ranks of a job run that no launcher (torchrun, srun) has started.
enum class RankPlacement { kAuto, kThreads, kProcesses };
constexpr auto enum_names(RankPlacement) {
  return std::to_array<EnumName<RankPlacement>>(
      {{RankPlacement::kAuto, "auto"}, {RankPlacement::kThreads, "threads"}, {RankPlacement::kProcesses, "processes"}});
}

struct LaunchConfig {
  DeviceChoice device = DeviceChoice::kAuto;   // auto: CUDA if a device is there
  RankPlacement ranks = RankPlacement::kAuto;  // auto: processes on GPUs, threads on CPUs
  bool deterministic = false;                  // refuse operators whose results vary from run to run
  std::optional<std::int64_t> num_threads;     // of a CPU operator; null: all cores, shared by the ranks of a machine
  LogLevel log_level = LogLevel::kInfo;        // of the ranks' loggers: lines below are dropped

  static constexpr auto fields() {
    return record<LaunchConfig>(defaulted("device", &LaunchConfig::device), defaulted("ranks", &LaunchConfig::ranks),
                                defaulted("deterministic", &LaunchConfig::deterministic),
                                defaulted("num_threads", &LaunchConfig::num_threads, at_least(1)),
                                defaulted("log_level", &LaunchConfig::log_level));
  }
};

// Runs `program` on every rank of this process and returns the exit code: 0, 2 after a UsageError, 1 after any other
// error, whose text goes to stderr as one line. Under torchrun or srun (core/launch/rank_environment.h) this process is
// one rank. Otherwise all ranks of the mesh run on this machine: as threads, or as child processes, which execute this
// program again, so that before launch a program only reads its configuration. One failure ends all ranks.
// Process-wide switches (threads, autograd engine, CUDA) are set before.
[[nodiscard]] int launch(const LaunchConfig& config, const DeviceMeshParameters& mesh,
                         const std::function<void(DistContext&)>& program);

// The exit code of `program`, errors printed as above. For programs without launch().
[[nodiscard]] int run_reporting_errors(const std::function<void()>& program);

// Reads the configuration from `CONFIG.json key.path=value ...` (base/config/load_config.h has --help, --schema and
// `rewrite`), then launches. Config has members `launch` and `mesh`.
template <Record Config, class Program>
[[nodiscard]] int launch(int argc, char** argv, const Program& program, const ConfigRewrite& rewrite = nullptr) {
  int exit_code = 0;
  const int load_code = run_reporting_errors([&] {
    const auto config = load_config<Config>(argc, argv, rewrite);
    exit_code = launch(config.launch, config.mesh, [&](DistContext& context) { program(config, context); });
  });
  return load_code != 0 ? load_code : exit_code;
}

}  // namespace d9d
