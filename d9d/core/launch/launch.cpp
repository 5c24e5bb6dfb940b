#include "d9d/core/launch/launch.h"

#include <iostream>
#include <string>
#include <thread>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"
#include "d9d/base/io/bus_errors.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/device/start_cudnn.h"
#include "d9d/core/device/torch_version.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/launch/child_processes.h"
#include "d9d/core/launch/library_environment.h"
#include "d9d/core/launch/rendezvous.h"
#include "d9d/core/launch/thread_ranks.h"

namespace d9d {
namespace {

bool chooses_cuda(DeviceChoice choice) {
  if (choice == DeviceChoice::kCpu) return false;
  const int num_devices = num_cuda_devices();
  D9D_CHECK(num_devices > 0 || choice == DeviceChoice::kAuto, ConfigError,
            "[core::launch] expected a CUDA device for launch.device = cuda, got none. Use launch.device=cpu.");
  return num_devices > 0;
}

c10::Device device_of(const LaunchConfig& config, std::int64_t local_rank) {
  if (!chooses_cuda(config.device)) return c10::kCPU;
  D9D_CHECK(local_rank < num_cuda_devices(), ConfigError,
            "[core::launch] expected a GPU for each rank of this machine, got ", num_cuda_devices(), " for rank ",
            local_rank, " of it. Start fewer ranks here, or use launch.device=cpu.");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

void use_device(c10::Device device) {
  if (!device.is_cuda()) return;
  load_cuda();
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
}

// More threads than that wait for each other at every operator: with many thousand nothing moves at all.
void check_threads(const LaunchConfig& config) {
  const std::int64_t most = 4 * std::max(16U, std::thread::hardware_concurrency());
  D9D_CHECK(config.num_threads.value_or(1) <= most, ConfigError,
            "[core::launch] expected launch.num_threads of at most ", most, " on this machine, got ",
            *config.num_threads, ". Leave it null for all cores, divided among the ranks.");
}

void set_threads(const LaunchConfig& config, std::int64_t num_local_ranks) {
  const auto share = std::max<std::int64_t>(1, at::get_num_threads() / num_local_ranks);
  at::set_num_threads(static_cast<int>(config.num_threads.value_or(share)));
}

void set_deterministic() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setSDPUseCuDNN(false);  // its backward sums in no fixed order
}

// "mesh pipeline_parallel=2 tensor_parallel=4 ...": the text that must agree on all ranks.
std::string describe(const DeviceMeshParameters& mesh) {
  std::string text = "mesh";
  for_each_field<DeviceMeshParameters>(
      [&](const auto& field) { text += cat(" ", field.name, "=", mesh.*field.member); });
  return text;
}

using Program = std::function<void(DistContext&)>;

// After a failed communication, an error of the program may result from the invalid values that it left. The failure of
// the communication is therefore reported first.
void run_program(const Program& program, DistContext& context) {
  try {
    program(context);
  } catch (const CommunicationError&) {
    throw;
  } catch (const std::exception&) {
    context.world()->throw_if_failed();
    throw;
  }
}

void run_as_rank(const RankEnvironment& here, const LaunchConfig& config, const DeviceMeshParameters& mesh,
                 const Program& program) {
  set_threads(config, here.local_world_size);
  const c10::Device device = device_of(config, here.local_rank);
  // Not started if deterministic, because cuDNN's sums vary.
  const std::jthread cudnn = config.deterministic ? std::jthread() : start_cudnn(device);
  use_device(device);
  check_torch_version();
  const auto world = here.world_size == 1
                         ? one_rank_world(device)
                         : std::make_shared<World>(connect_ranks(here, {.device = device, .job = describe(mesh)}));
  try {
    DistContext context({.mesh = mesh,
                         .world = world,
                         .local_rank = here.local_rank,
                         .node_rank = here.node,
                         .num_nodes = here.num_nodes,
                         .master_address = here.master_address,
                         .log_level = config.log_level});
    run_program(program, context);
    world->leave();
  } catch (const PeerFailedError&) {
    throw;
  } catch (const std::exception& error) {
    world->abort(cat("rank ", here.rank, " failed: ", error_line(error)));
    throw;
  } catch (...) {
    world->abort(cat("rank ", here.rank, " failed: ", kUnknownException));
    throw;
  }
}

void run_as_threads(const LaunchConfig& config, const DeviceMeshParameters& mesh, const Program& program) {
  check_torch_version();
  run_thread_ranks(mesh.world_size(), [&](const std::shared_ptr<World>& world) {
    if (config.num_threads) at::set_num_threads(static_cast<int>(*config.num_threads));
    DistContext context({.mesh = mesh, .world = world, .local_rank = world->rank(), .log_level = config.log_level});
    program(context);
  });
}

}  // namespace

int run_reporting_errors(const std::function<void()>& program) {
  explain_bus_errors();
  const auto report = [](const std::string& text) {
    if (!tell_supervisor(text)) write_line_to_stderr("error: " + text);
  };
  try {
    program();
    return 0;
  } catch (const HelpRequested& help) {
    std::cout << help.what() << '\n';
    return 0;
  } catch (const UsageError& error) {
    report(error_line(error));
    return 2;
  } catch (const PeerFailedError&) {
    return kPeerFailedExitCode;  // the rank that failed prints its error, and who started it how it ended
  } catch (const std::exception& error) {
    report(error_line(error));
  } catch (...) {
    report(kUnknownException);
  }
  return 1;
}

int launch(const LaunchConfig& config, const DeviceMeshParameters& mesh, const Program& program) {
  int exit_code = 0;
  const int error_code = run_reporting_errors([&] {
    mesh.validate(ConfigPath{.keys = "mesh"});
    check_threads(config);
    set_library_environment(config.deterministic);
    install_checkpoint_engine();
    if (config.deterministic) set_deterministic();
    const auto here = rank_environment();
    if (here || mesh.world_size() == 1) {
      run_as_rank(here.value_or(RankEnvironment{}), config, mesh, program);
      return;
    }
    const bool uses_cuda = chooses_cuda(config.device);
    D9D_CHECK(!uses_cuda || config.ranks != RankPlacement::kThreads, ConfigError,
              "[core::launch] expected launch.ranks = processes on GPUs, got threads. Use launch.ranks=auto.");
    if (uses_cuda || config.ranks == RankPlacement::kProcesses) {
      exit_code = run_child_processes({.num_ranks = mesh.world_size()});
    } else {
      run_as_threads(config, mesh, program);
    }
  });
  return error_code != 0 ? error_code : exit_code;
}

namespace detail {

int launch_configured(const ConfigSource& source, const LaunchConfig& config, const DeviceMeshParameters& mesh,
                      const Program& program) {
  restart_with_short_spins(source.argc, source.argv);
  int exit_code = 0;  // stays so after --help
  const int load_code = run_reporting_errors([&] {
    load_config(source.argc, source.argv, source.rewrite, source.type(), source.config);
    exit_code = launch(config, mesh, program);
  });
  return load_code != 0 ? load_code : exit_code;
}

}  // namespace detail

template const ValueType& json_type<LaunchConfig>();

}  // namespace d9d
