// Starts a job: sets process-wide state once, finds the device, runs the program on each rank and turns errors into one
// line and an exit code.
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
#include <optional>

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

// Where the ranks of a job run if no launcher (torchrun, srun) has started them.
enum class RankPlacement { kAuto, kThreads, kProcesses };
constexpr auto enum_names(RankPlacement) {
  return std::to_array<EnumName<RankPlacement>>(
      {{RankPlacement::kAuto, "auto"}, {RankPlacement::kThreads, "threads"}, {RankPlacement::kProcesses, "processes"}});
}

struct LaunchConfig {
  DeviceChoice device = DeviceChoice::kAuto;   // auto: CUDA if a device is present
  RankPlacement ranks = RankPlacement::kAuto;  // auto: processes on GPUs, threads on CPUs
  std::int64_t ranks_per_gpu = 1;              // more is slow: checks a layout of more ranks than GPUs
  bool deterministic = false;                  // throw for operators whose results vary from run to run
  std::optional<std::int64_t> num_threads;     // per CPU operator; null: all cores, divided among the ranks
  LogLevel log_level = LogLevel::kInfo;        // the ranks' loggers drop lines of lower levels

  static constexpr auto fields() {
    return record<LaunchConfig>(defaulted("device", &LaunchConfig::device), defaulted("ranks", &LaunchConfig::ranks),
                                defaulted("ranks_per_gpu", &LaunchConfig::ranks_per_gpu, at_least(1)),
                                defaulted("deterministic", &LaunchConfig::deterministic),
                                defaulted("num_threads", &LaunchConfig::num_threads, at_least(1)),
                                defaulted("log_level", &LaunchConfig::log_level));
  }
};

extern template const ValueType& json_type<LaunchConfig>();

// Runs `program` on every rank of this process and returns the exit code: 0; 128 + its number if a signal has stopped
// the program early (DistContext::stopped_by, which a Trainer calls); 2 after a UsageError, 1 after any other error,
// whose text goes to stderr as one line. Under torchrun or srun (core/launch/rank_environment.h) this process is
// one rank. Otherwise all ranks of the mesh run on this machine: as threads, or as child processes. Child processes
// execute this program again, so before launch() a program should only read its configuration. The failure of one rank
// ends all ranks. Process-wide settings (threads, autograd engine, CUDA) are made before `program` runs. If ranks are
// processes, a program may call launch() only once, since each process runs the program from its beginning.
// init_timeout: seconds within which all ranks must join; none: 300.
[[nodiscard]] int launch(const LaunchConfig& config, const DeviceMeshParameters& mesh,
                         const std::function<void(DistContext&)>& program,
                         std::optional<std::int64_t> init_timeout = std::nullopt);

// Returns the exit code of `program` and prints errors as launch() does. For programs without launch().
[[nodiscard]] int run_reporting_errors(const std::function<void()>& program);

namespace detail {

// The source from which launch<Config> reads a program's configuration, and the object that it fills.
struct ConfigSource {
  int argc;
  const char* const* argv;
  const ConfigRewrite& rewrite;
  const RecordType& (*type)();  // throws for mistakes in fields()
  void* config;
  const std::int64_t* init_timeout = nullptr;  // trainer.timeout.init_timeout, if the configuration has it
};

// Loads the configuration, then launches. `config` and `mesh` are members of the object that loading fills.
[[nodiscard]] int launch_configured(const ConfigSource& source, const LaunchConfig& config,
                                    const DeviceMeshParameters& mesh, const std::function<void(DistContext&)>& program);

}  // namespace detail

// Reads the configuration from `CONFIG.json key.path=value ...` (base/config/load_config.h describes --help, --schema
// and `rewrite`), then launches. Config has members `launch` and `mesh`; if it has a TrainerConfig `trainer`, ranks
// meet within trainer.timeout.init_timeout. Call it first in main, since it may restart the program
// (core/launch/library_environment.h).
template <class Config, class Program>
[[nodiscard]] int launch(int argc, char** argv, const Program& program, const ConfigRewrite& rewrite = nullptr) {
  constexpr bool kHasMembers = requires(const Config& config, const std::function<void(DistContext&)>& run) {
    launch(config.launch, config.mesh, run);
  };
  constexpr bool kTakesContext = std::is_invocable_v<const Program&, const Config&, DistContext&>;
  static_assert(Record<Config>,
                "launch<Config>: Config must list its members in `static constexpr auto fields()` (d9d/base/record.h)");
  static_assert(kHasMembers,
                "launch<Config>: Config needs the members `d9d::LaunchConfig launch` and `d9d::DeviceMeshParameters "
                "mesh`");
  static_assert(kTakesContext, "launch<Config>: the program must be callable with (const Config&, d9d::DistContext&)");
  if constexpr (Record<Config> && kHasMembers && kTakesContext) {
    Config config{};
    detail::ConfigSource source{
        .argc = argc, .argv = argv, .rewrite = rewrite, .type = &record_type<Config>, .config = &config};
    if constexpr (requires { config.trainer.timeout.init_timeout; }) {
      source.init_timeout = &config.trainer.timeout.init_timeout;
    }
    return detail::launch_configured(source, config.launch, config.mesh,
                                     [&](DistContext& context) { program(std::as_const(config), context); });
  }
  return 0;
}

}  // namespace d9d
